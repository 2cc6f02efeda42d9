"""Wirings: the blocks of a backbone, and what is between their stages."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import nn

from t2t.errors import UserError
from t2t.models.blocks import Block, DenseBlock, DenseTransitionBlock
from t2t.models.config import ModelConfig
from t2t.models.depthwise import as_map, as_tokens, split_prefix
from t2t.models.token_grid import Grid
from t2t.ops.soft_split import Split, soft_split
from t2t.shapes import Tokens


class BlockSpec(NamedTuple):
    """How a block is built."""

    kind: type[Block]
    dim: int
    """Width of the tokens that enter it."""
    grid: Grid
    """Grid of the tokens that enter it."""
    config: ModelConfig
    """With the heads and the mixer of its stage."""


@dataclass(frozen=True)
class Wiring:
    """The blocks of a backbone, and where the token grid shrinks."""

    specs: list[BlockSpec]
    stage_ends: tuple[int, ...] = ()
    """Numbers of the blocks after which a pyramid's tokens are split again."""


class Downsample(nn.Module):
    """A soft split between two stages: fewer tokens, of another width.

    Prefix tokens are not split; a linear layer of their own gives them the new width.
    """

    needs_all_tokens = True
    split = Split(3, 2, 1)

    def __init__(self, dim: int, out_dim: int, num_prefix: int, eps: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim, eps=eps)
        self.project = nn.Linear(dim * self.split.kernel**2, out_dim)
        self.prefix = nn.Linear(dim, out_dim) if num_prefix else None

    def out_grid(self, grid: Grid) -> Grid:
        """The grid of the new tokens."""
        rows, columns = grid
        return self.split.length(rows), self.split.length(columns)

    def forward(self, tokens: Tokens, grid: Grid) -> Tokens:
        prefix, image = split_prefix(self.norm(tokens), grid)
        weight, bias = self.project.weight, self.project.bias
        split = soft_split(as_map(image, grid), self.split, None, weight, bias)
        image = as_tokens(split)
        if self.prefix is None:
            return image
        return torch.cat([self.prefix(prefix).to(image.dtype), image], dim=1)


def residual_wiring(config: ModelConfig, grid: Grid) -> Wiring:
    """Blocks of one width."""
    return Wiring([BlockSpec(Block, config.dim, grid, config)] * config.depth)


def dense_wiring(config: ModelConfig, grid: Grid) -> Wiring:
    """Blocks that each widen the tokens; the width halves at the end of a stage."""
    if sum(config.dense_stages) != config.depth or config.growth < 1:
        raise UserError(
            f"wiring='dense' needs growth ≥ 1 and dense_stages that sum to depth; "
            f"given growth={config.growth}, dense_stages={config.dense_stages}, "
            f"depth={config.depth}."
        )
    specs: list[BlockSpec] = []
    dim = config.dim
    for stage, depth in enumerate(config.dense_stages, start=1):
        for layer in range(1, depth + 1):
            ends = layer == depth and stage < len(config.dense_stages)
            kind = DenseTransitionBlock if ends else DenseBlock
            specs.append(BlockSpec(kind, dim, grid, config))
            dim += config.growth
        if stage < len(config.dense_stages):
            dim //= 2
    return Wiring(specs)


def pyramid_wiring(config: ModelConfig, grid: Grid) -> Wiring:
    """Stages of blocks; between two, tokens are split again and the width doubles."""
    stages, mixers = config.pyramid_stages, config.pyramid_mixers
    if sum(stages) != config.depth:
        raise UserError(
            "wiring='pyramid' needs pyramid_stages that sum to depth, such as "
            f"pyramid_stages=2,2,6,2 for depth=12; given pyramid_stages={stages}, "
            f"depth={config.depth}."
        )
    if len(mixers) not in (0, len(stages)):
        raise UserError(
            f"pyramid_mixers={mixers} names {len(mixers)} mixers for {len(stages)} "
            "stages; give one for each stage, or none to use mixer in all of them."
        )
    specs: list[BlockSpec] = []
    ends: list[int] = []
    for stage, depth in enumerate(stages):
        dim, num_heads = (each << stage for each in (config.dim, config.num_heads))
        mixer = mixers[stage] if mixers else config.mixer
        own = replace(config, num_heads=num_heads, mixer=mixer)
        specs += [BlockSpec(Block, dim, grid, own)] * depth
        ends.append(len(specs) - 1)
        rows, columns = grid
        grid = Downsample.split.length(rows), Downsample.split.length(columns)
    return Wiring(specs, tuple(ends))


WIRINGS: dict[str, Callable[[ModelConfig, Grid], Wiring]] = {
    "residual": residual_wiring,
    "dense": dense_wiring,
    "pyramid": pyramid_wiring,
}
