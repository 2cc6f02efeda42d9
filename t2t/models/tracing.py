"""FX graphs of a model, as the feature extractors of timm and torchvision draw them."""

from typing import TYPE_CHECKING, Any

import torch

from t2t.models.encoders import Encoder
from t2t.models.layers import DropPath, SequenceProjection
from t2t.models.positions import PlacedPositions
from t2t.models.tokenizers import Tokenizer

if TYPE_CHECKING:
    from t2t.models.vit import VisionTransformer

LEAVES = (Tokenizer, Encoder, PlacedPositions, SequenceProjection, DropPath)
"""Modules that ask for the sizes of what they are given: one node each."""


def register_leaves() -> None:
    """Makes timm's tracers leave these modules whole."""
    from timm.models import register_notrace_module

    for module in LEAVES:
        register_notrace_module(module)


def traced(model: "VisionTransformer", images: Any, num_read: int | None) -> Any:
    """What the heads read, as a node of the graph that images are traced into.

    The encoder is one node, which computes what the model does. Its blocks are drawn
    beside it for those who want what is within, such as attention maps; extractors
    leave out whatever is not asked for.
    """
    features = model.tokenizer(images)
    grid = features.shape[-2:]
    tokens = features.flatten(2).transpose(1, 2)
    if model.prefix is not None:
        prefix = model.prefix.to(tokens.dtype).expand(tokens.shape[0], -1, -1)
        tokens = torch.cat([prefix, tokens], dim=1)
    inner, positions = tokens, model.encoder.positions
    for layer, block in enumerate(model.encoder.blocks):
        inner, bias = positions(inner, layer, grid)
        inner = block(inner, grid, bias if positions.biases(layer) else None)
    return model.encoder(tokens, grid, model.norm, num_read)
