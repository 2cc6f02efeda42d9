"""Evidence for a prediction: token maps, attention rollout and occlusion."""

from dataclasses import dataclass

import torch
from torch import nn

from t2t.analysis.attention_maps import Map, attention_maps
from t2t.analysis.attention_rollout import has_rollout, num_tokens_read, rollout
from t2t.analysis.occlusion import occlusion_map
from t2t.analysis.token_maps import Colours, pca_colours, token_maps
from t2t.models.vit import VisionTransformer
from t2t.shapes import Images


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """The evidence in one image for a class."""

    tokens: tuple[tuple[str, Colours], ...]
    """Named token maps; tokens of similar colour are similar."""
    attention: Map | None
    """Attention rollout, relative to its mean."""
    occlusion: Map
    """Percentage points that the class's probability falls where a part is hidden."""


@torch.no_grad()
def explain(
    model: nn.Module, image: Images, class_index: int, *, multilabel: bool = False
) -> Explanation:
    """The evidence in one normalised image for a class.

    `multilabel`: the model predicts several labels per image.
    Token maps exist for our transformers only, attention for timm's ViTs too.
    """
    tokens: list[tuple[str, Colours]] = []
    if isinstance(model, VisionTransformer):
        maps = token_maps(model, image)
        tokens = [(name, pca_colours(features)) for name, features in maps]
    return Explanation(
        tokens=tuple(tokens),
        attention=attention_rollout(model, image),
        occlusion=occlusion_map(model, image, class_index, multilabel=multilabel),
    )


def attention_rollout(model: nn.Module, image: Images) -> Map | None:
    """Attention from the head's input back to the tokens, through all blocks.

    None where a block has no map, or a map over other tokens than the rest.
    """
    layers = attention_maps(model, image, average_heads=True)
    if not has_rollout(layers, model):
        return None
    return rollout(layers, num_read=num_tokens_read(model))
