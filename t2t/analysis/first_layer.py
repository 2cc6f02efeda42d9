"""First-layer filters and position embeddings, which need no image."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from t2t.models.config import Size
from t2t.models.token_grid import Grid
from t2t.models.tokenizers import TokensToToken
from t2t.models.vit import VisionTransformer

MAX_GRID_SIDE = 16
"""Rows and columns of tokens with a map; larger grids show every n-th."""


@dataclass(frozen=True, kw_only=True)
class FirstFilters:
    """The filters of the first layer, as small images."""

    values: Float[Tensor, "filters channels height width"]
    caption: str
    """Which weights these are, in a sentence."""


@dataclass(frozen=True, kw_only=True)
class PositionMaps:
    """A map over the token grid for each of some tokens, or for each head."""

    values: Float[Tensor, "rows columns map_rows map_columns"]
    """Cosine similarities of embeddings; or in one row, a bias for each head."""
    is_bias: bool
    caption: str


def first_filters(model: nn.Module) -> FirstFilters | None:
    """The first filters that a model applies to an image; None if it has none."""
    if isinstance(model, VisionTransformer) and isinstance(
        model.tokenizer, TokensToToken
    ):
        return soft_split_filters(model.tokenizer, model.config.in_channels)
    for name, part in model.named_modules():
        if isinstance(part, nn.Conv2d) and part.groups == 1:
            values = part.weight.detach().float().cpu()
            caption = f"The {len(values):,} filters of {name}"
            return FirstFilters(
                values=values, caption=f"{caption}{size_caption(values)}."
            )
    return None


def soft_split_filters(tokenizer: TokensToToken, in_channels: int) -> FirstFilters:
    """The rows of the weight that compute values, which the skip connection keeps."""
    split = tokenizer.splits[0]
    if len(tokenizer.steps):
        step: Any = tokenizer.steps[0]
        gain = step.norm1.weight
        # Queries, keys and values lie side by side, values last.
        rows, kind = step.qkv.weight.chunk(3)[2] * gain, "values"
    else:
        rows, kind = tokenizer.project.weight, "tokens"
    values = rows.detach().float().cpu()
    values = values.unflatten(1, (in_channels, split.kernel, split.kernel))
    return FirstFilters(
        values=values,
        caption=f"The {len(values):,} filters that make the {kind} of the first "
        f"soft split{size_caption(values)}.",
    )


def size_caption(filters: Float[Tensor, "filters channels height width"]) -> str:
    """The size of filters, as the end of a caption."""
    height, width = filters.shape[2:]
    return f", {height}×{width} pixels each"


@torch.no_grad()
def position_maps(model: nn.Module, image_size: Size) -> PositionMaps | None:
    """The similarity of each token's position to all others; None without positions.

    Relative positions have no embeddings: their attention bias is returned instead.
    """
    if isinstance(model, VisionTransformer):
        grid = model.tokenizer.grids(image_size)[-1]
        positions: Any = model.encoder.positions.tables[0]
        kind = model.config.positions
        num_prefix = model.config.num_prefix_tokens
        if positions.has_bias:
            bias = positions.attention_bias(grid)
            return None if bias is None else bias_maps(bias[0], num_prefix, grid, kind)
        table = positions.embedding(grid)
        caption = f"Position embeddings {kind}"
        if model.config.positions_at == "every_layer":
            caption += " of the first block"
    else:
        table = getattr(model, "pos_embed", None)
        size = getattr(getattr(model, "patch_embed", None), "grid_size", None)
        if not isinstance(table, Tensor) or table.ndim != 3 or size is None:
            return None
        table, grid, caption = table[0], (int(size[0]), int(size[1])), "pos_embed"
        num_prefix = len(table) - grid[0] * grid[1]
        if num_prefix < 0:
            return None
    if table is None:
        return None
    return similarity_maps(table[num_prefix:].float().cpu(), grid, caption)


def similarity_maps(
    table: Float[Tensor, "tokens dim"], grid: Grid, caption: str
) -> PositionMaps:
    """The cosine similarity of the embeddings of tokens to those of all tokens."""
    unit = F.normalize(table, dim=1)
    picked = [torch.arange(num)[:: -(-num // MAX_GRID_SIDE)] for num in grid]
    chosen = unit.unflatten(0, grid)[picked[0]][:, picked[1]]
    values = (chosen @ unit.T).unflatten(2, grid)
    few = "" if values.shape[:2] == grid else f", of {len(chosen)}×{chosen.shape[1]}"
    return PositionMaps(
        values=values,
        is_bias=False,
        caption=f"{caption}, {grid[0]}×{grid[1]} tokens{few}.",
    )


def bias_maps(
    bias: Float[Tensor, "heads queries keys"], num_prefix: int, grid: Grid, kind: str
) -> PositionMaps:
    """The attention bias from the token in the middle to all tokens, for each head."""
    middle = num_prefix + (grid[0] // 2) * grid[1] + grid[1] // 2
    values = bias[:, middle, num_prefix:].float().cpu().unflatten(1, grid)
    return PositionMaps(
        values=values[None],
        is_bias=True,
        caption=f"Positions {kind}: the bias of the attention logits of the first "
        "block from the token in the middle, for each head.",
    )
