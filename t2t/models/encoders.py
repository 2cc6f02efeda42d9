"""The backbone: blocks and how they are wired."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from t2t.errors import UserError, choose
from t2t.models.config import ModelConfig
from t2t.models.fused import FEWEST_DROPPED, are_plain, block_weights, is_fused
from t2t.models.layers import (
    Bias,
    DropPath,
    GhostLinear,
    GhostQKV,
    Mlp,
    SelfAttention,
    SequenceProjection,
    SqueezeExcite,
)
from t2t.models.positions import Grid, PlacedPositions
from t2t.ops.block_stack import BlockWeights, block_stack
from t2t.ops.performer_step import compute_dtype
from t2t.shapes import Tokens


def attention(dim: int, grid: Grid, config: ModelConfig) -> SelfAttention:
    """Plain multi-head attention."""
    return SelfAttention(
        dim,
        config.num_heads,
        qkv=nn.Linear(dim, 3 * dim, bias=config.qkv_bias),
        scale=config.attention_scale,
    )


def attention_se(dim: int, grid: Grid, config: ModelConfig) -> SelfAttention:
    """Attention with squeeze-and-excitation on its output."""
    mixer = attention(dim, grid, config)
    mixer.gate = SqueezeExcite(dim)
    return mixer


def ghost_attention(dim: int, grid: Grid, config: ModelConfig) -> SelfAttention:
    """Attention that computes half of its queries, keys and values."""
    mixer = attention(dim, grid, config)
    mixer.qkv = GhostQKV(dim, bias=config.qkv_bias)
    return mixer


def linformer_attention(dim: int, grid: Grid, config: ModelConfig) -> SelfAttention:
    """Attention to a fixed number of mixtures of keys and values."""
    if config.positions == "relative":
        raise UserError(
            "mixer='linformer' mixes the keys of all places, so positions='relative' "
            "cannot act; choose other positions."
        )
    mixer = attention(dim, grid, config)
    mixer.shorten = SequenceProjection(
        config.num_prefix_tokens, grid, config.linformer_dim
    )
    return mixer


MIXERS: dict[str, Callable[[int, Grid, ModelConfig], SelfAttention]] = {
    "attention": attention,
    "attention_se": attention_se,
    "ghost": ghost_attention,
    "linformer": linformer_attention,
}


def plain_mlp(dim: int, hidden_dim: int) -> Mlp:
    """Linear, GELU, linear."""
    return Mlp(nn.Sequential(nn.Linear(dim, hidden_dim), nn.GELU()), hidden_dim, dim)


def ghost_mlp(dim: int, hidden_dim: int) -> Mlp:
    """An MLP that computes a share of its hidden channels, and scales it for others."""
    num_shares = max(1, round(hidden_dim / dim))
    expand = GhostLinear(dim, hidden_dim, num_shares, bias=True, activation=nn.GELU())
    return Mlp(expand, hidden_dim, dim)


MLPS: dict[str, Callable[[int, int], Mlp]] = {"mlp": plain_mlp, "ghost": ghost_mlp}


class Block(nn.Module):
    """Pre-norm attention and MLP, each with a skip."""

    def __init__(
        self, dim: int, grid: Grid, drop_path: float, config: ModelConfig
    ) -> None:
        super().__init__()
        self.out_dim = dim
        mixer = choose("mixer", config.mixer, MIXERS)
        mlp = choose("mlp", config.mlp, MLPS)
        self.norm1 = nn.LayerNorm(dim, eps=config.norm_eps)
        self.mixer = mixer(dim, grid, config)
        self.norm2 = nn.LayerNorm(dim, eps=config.norm_eps)
        self.mlp = mlp(dim, int(dim * config.mlp_ratio))
        self.drop_path = DropPath(drop_path)

    def forward(self, tokens: Tokens, grid: Grid, bias: Bias | None) -> Tokens:
        mixed = self.mixer(self.norm1(tokens), grid, bias)
        tokens = tokens + self.drop_path(mixed)
        return tokens + self.drop_path(self.mlp(self.norm2(tokens)))


class DenseBlock(Block):
    """A block whose output, narrowed, is concatenated to its input."""

    def __init__(
        self, dim: int, grid: Grid, drop_path: float, config: ModelConfig
    ) -> None:
        super().__init__(dim, grid, drop_path, config)
        self.out_dim = dim + config.growth
        self.narrow = nn.Linear(dim, config.growth)

    def forward(self, tokens: Tokens, grid: Grid, bias: Bias | None) -> Tokens:
        grown = self.narrow(super().forward(tokens, grid, bias))
        return torch.cat([tokens, grown], dim=-1)


class DenseTransitionBlock(DenseBlock):
    """The last dense block of a stage: the width is halved after it."""

    def __init__(
        self, dim: int, grid: Grid, drop_path: float, config: ModelConfig
    ) -> None:
        super().__init__(dim, grid, drop_path, config)
        width = self.out_dim
        self.out_dim = width // 2
        self.halve = nn.Linear(width, self.out_dim)

    def forward(self, tokens: Tokens, grid: Grid, bias: Bias | None) -> Tokens:
        return F.gelu(self.halve(super().forward(tokens, grid, bias)))


class Encoder(nn.Module):
    """Blocks one after another, with positions where they belong."""

    def __init__(self, grid: Grid, config: ModelConfig) -> None:
        super().__init__()
        plan = choose("wiring", config.wiring, WIRINGS)(config)
        rates = torch.linspace(0, config.drop_path, len(plan), device="cpu").tolist()
        self.positions = PlacedPositions(
            config.positions,
            config.positions_at,
            [dim for _, dim in plan],
            config.num_prefix_tokens,
            grid,
            config.num_heads,
        )
        blocks = [
            block(dim, grid, rate, config)
            for (block, dim), rate in zip(plan, rates, strict=True)
        ]
        self.blocks = nn.ModuleList(blocks)
        self.out_dims = [block.out_dim for block in blocks]
        self.checkpointing = False

    @property
    def out_dim(self) -> int:
        """Width of the tokens after the last block."""
        return self.out_dims[-1]

    def keep(self, num_blocks: int) -> None:
        """Removes all blocks behind the first few."""
        self.blocks = self.blocks[:num_blocks]
        self.out_dims = self.out_dims[:num_blocks]

    def forward(
        self, tokens: Tokens, grid: Grid, norm: nn.Module, num_read: int | None = None
    ) -> Tokens:
        """Tokens behind the last block and the norm: the first few, or all."""
        stack = self.stack(tokens, grid, norm)
        if stack is None:
            for layer in range(len(self.blocks)):
                tokens = self.step(layer, tokens, grid)
            return norm(tokens)[:, :num_read]
        assert isinstance(norm, nn.LayerNorm)
        first, rates = self.plain_blocks()[0], self.drop_rates()
        tokens = self.positions.add_to(tokens, 0, grid)
        return block_stack(
            tokens.to(compute_dtype(tokens)),
            stack,
            (norm.weight, norm.bias),
            first.mixer.num_heads,
            first.mixer.scale,
            norm.eps,
            tokens.shape[1] if num_read is None else num_read,
            rates if self.training and max(rates) > 0 else None,
        )

    def stack(
        self, tokens: Tokens, grid: Grid, norm: nn.Module
    ) -> list[BlockWeights] | None:
        """The weights of all blocks where they can run fused, else None."""
        blocks, positions = self.plain_blocks(), self.positions
        if not is_fused(tokens) or len(blocks) < len(self.blocks):
            return None
        if positions.place != "stem" or positions.attention_bias(0, grid) is not None:
            return None
        dropped = len(tokens) * max(self.drop_rates())
        if self.training and (self.checkpointing or 0 < dropped < FEWEST_DROPPED):
            return None
        found = [block_weights(block) for block in blocks]
        stack = [weights for weights in found if weights is not None]
        whole = len(stack) == len(blocks) and are_plain([norm])
        return stack if whole else None

    def plain_blocks(self) -> list[Block]:
        """The blocks that are neither dense nor somebody else's."""
        return [block for block in self.blocks if type(block) is Block]

    def drop_rates(self) -> list[float]:
        """The stochastic depth of every plain block."""
        return [block.drop_path.rate for block in self.plain_blocks()]

    def step(self, layer: int, tokens: Tokens, grid: Grid) -> Tokens:
        """Tokens after one layer."""
        tokens = self.positions.add_to(tokens, layer, grid)
        bias = self.positions.attention_bias(layer, grid)
        block = self.blocks[layer]
        if self.checkpointing and self.training:
            kept: Tokens = checkpoint(block, tokens, grid, bias, use_reentrant=False)
            return kept
        return block(tokens, grid, bias)


Plan = list[tuple[type[Block], int]]


def residual_wiring(config: ModelConfig) -> Plan:
    """Blocks of one width."""
    return [(Block, config.dim)] * config.depth


def dense_wiring(config: ModelConfig) -> Plan:
    """Blocks that each widen the tokens, and halve them at the end of a stage."""
    if sum(config.dense_stages) != config.depth or config.growth < 1:
        raise UserError(
            f"wiring='dense' needs growth ≥ 1 and dense_stages that sum to depth; "
            f"given growth={config.growth}, dense_stages={config.dense_stages}, "
            f"depth={config.depth}."
        )
    plan: Plan = []
    dim = config.dim
    for stage, depth in enumerate(config.dense_stages, start=1):
        for layer in range(1, depth + 1):
            ends = layer == depth and stage < len(config.dense_stages)
            plan.append((DenseTransitionBlock if ends else DenseBlock, dim))
            dim += config.growth
        if stage < len(config.dense_stages):
            dim //= 2
    return plan


WIRINGS: dict[str, Callable[[ModelConfig], Plan]] = {
    "residual": residual_wiring,
    "dense": dense_wiring,
}
