"""Support for torch.fx, which feature extractors of timm and torchvision use."""

from typing import TYPE_CHECKING, Any

import torch

from t2t.models.axial import AxialMask
from t2t.models.depthwise import DepthwiseConvolution
from t2t.models.encoder_positions import EncoderPositions
from t2t.models.encoders import Encoder
from t2t.models.layers import DropPath, SequenceProjection
from t2t.models.tokenizers import Tokenizer
from t2t.models.wirings import Downsample

if TYPE_CHECKING:
    from t2t.models.vit import VisionTransformer

LEAVES = (
    Tokenizer,
    Encoder,
    EncoderPositions,
    SequenceProjection,
    AxialMask,
    DepthwiseConvolution,
    Downsample,
    DropPath,
)
"""Modules that read the shapes of their inputs: each is one node of the graph."""


def register_leaves() -> None:
    """Registers the modules that timm must not trace into."""
    from timm.models import register_notrace_module

    for module in LEAVES:
        register_notrace_module(module)


def traced(model: "VisionTransformer", images: Any, num_read: int | None) -> Any:
    """The input of the heads, as a node of the traced graph.

    The encoder is one node, which computes the output. Its blocks are traced as
    separate nodes for feature extractors, such as for attention maps; extractors remove
    the nodes that are not requested.
    """
    features = model.tokenizer(images)
    grid = features.shape[-2:]
    tokens = features.flatten(2).transpose(1, 2)
    if model.prefix is not None:
        prefix = model.prefix.to(tokens.dtype).expand(tokens.shape[0], -1, -1)
        tokens = torch.cat([prefix, tokens], dim=1)
    inner, inner_grid, positions = tokens, grid, model.encoder.positions
    for layer, block in enumerate(model.encoder.blocks):
        inner, bias = positions(inner, layer, inner_grid)
        inner = block(inner, inner_grid, bias if positions.has_bias(layer) else None)
        inner, inner_grid = model.encoder.next_stage(layer, inner, inner_grid)
    return model.encoder(tokens, grid, model.norm, num_read)[:, :num_read]
