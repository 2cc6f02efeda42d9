"""Blocks of the backbone, with their mixers and MLPs."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from t2t.errors import UserError
from t2t.models.axial import AxialAttention
from t2t.models.config import ModelConfig
from t2t.models.depthwise import ConvQKV, DepthwiseMlp
from t2t.models.fusion import MIN_DROPPED, block_weights, is_fused
from t2t.models.hooks import is_traced
from t2t.models.layers import (
    Bias,
    DropPath,
    GhostLinear,
    GhostQKV,
    Mlp,
    SelfAttention,
    SequenceProjection,
    SqueezeExcite,
    with_grid,
)
from t2t.models.shards import class_of
from t2t.models.token_grid import Grid
from t2t.ops.block_stack import one_block
from t2t.ops.performer_step import compute_dtype
from t2t.registry import Registry, check_takes
from t2t.shapes import Tokens


def attention(
    dim: int,
    grid: Grid,
    config: ModelConfig,
    kind: type[SelfAttention] = SelfAttention,
) -> SelfAttention:
    """Plain multi-head attention, or another kind of it."""
    return kind(
        dim,
        config.num_heads,
        qkv=nn.Linear(dim, 3 * dim, bias=config.qkv_bias),
        scale=config.attention_scale,
    )


def conv_attention(dim: int, grid: Grid, config: ModelConfig) -> SelfAttention:
    """Attention with depthwise convolutions before queries, keys and values."""
    mixer = attention(dim, grid, config)
    mixer.qkv = ConvQKV(dim, bias=config.qkv_bias)
    return mixer


def axial_attention(dim: int, grid: Grid, config: ModelConfig) -> SelfAttention:
    """Attention along rows and columns of the token grid."""
    if config.positions == "relative":
        raise UserError(
            "mixer='axial' compares a token with its row and column only, so it cannot "
            "use positions='relative'; choose other positions."
        )
    return attention(dim, grid, config, AxialAttention)


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
            "mixer='linformer' mixes the keys of all positions, so it cannot use "
            "positions='relative'; choose other positions."
        )
    mixer = attention(dim, grid, config)
    mixer.shorten = SequenceProjection(
        config.num_prefix_tokens, grid, config.linformer_dim
    )
    return mixer


MIXERS: Registry[Callable[[int, Grid, ModelConfig], nn.Module]] = Registry(
    "mixer",
    {
        "attention": attention,
        "attention_se": attention_se,
        "conv_attention": conv_attention,
        "axial": axial_attention,
        "ghost": ghost_attention,
        "linformer": linformer_attention,
    },
)
register_mixer = MIXERS.register


def plain_mlp(dim: int, hidden_dim: int) -> Mlp:
    """Linear, GELU, linear."""
    return Mlp(nn.Sequential(nn.Linear(dim, hidden_dim), nn.GELU()), hidden_dim, dim)


def ghost_mlp(dim: int, hidden_dim: int) -> Mlp:
    """An MLP that computes a share of its hidden channels and scales it for others."""
    num_shares = max(1, round(hidden_dim / dim))
    expand = GhostLinear(dim, hidden_dim, num_shares, bias=True, activation=nn.GELU())
    return Mlp(expand, hidden_dim, dim)


MLPS: Registry[Callable[[int, int], nn.Module]] = Registry(
    "mlp", {"mlp": plain_mlp, "depthwise": DepthwiseMlp, "ghost": ghost_mlp}
)
register_mlp = MLPS.register


class Block(nn.Module):
    """Pre-norm mixer and MLP, each with a skip connection."""

    def __init__(
        self, dim: int, grid: Grid, drop_path: float, config: ModelConfig
    ) -> None:
        super().__init__()
        self.out_dim = dim
        self.norm1 = nn.LayerNorm(dim, eps=config.norm_eps)
        self.mixer = MIXERS.build(config.mixer, nn.Module, dim, grid, config)
        self.user_mixer = MIXERS.user_choice(config.mixer)
        self.norm2 = nn.LayerNorm(dim, eps=config.norm_eps)
        hidden_dim = int(dim * config.mlp_ratio)
        self.mlp = MLPS.build(config.mlp, nn.Module, dim, hidden_dim)
        self.user_mlp = MLPS.user_choice(config.mlp)
        check_user_parts(self)
        self.drop_path = DropPath(drop_path)
        self.highest_drop_path = config.drop_path
        """The rate of the last block: it decides for all, as in a stack."""
        self.residual_dtype: torch.dtype | None = None
        """Precision of the residual stream where it is fused by itself."""

    def forward(self, tokens: Tokens, grid: Grid, bias: Bias | None) -> Tokens:
        is_plain = bias is None and not is_traced(tokens)
        fused = self.fused(tokens) if is_plain else None
        if fused is not None:
            return fused
        mixed = self.mixer(self.norm1(tokens), grid, bias)
        if self.user_mixer:
            check_same_shape(self.user_mixer, mixed, tokens)
        tokens = tokens + self.drop_path(mixed)
        normed = self.norm2(tokens)
        changed = with_grid(self.mlp, normed, grid)
        if self.user_mlp:
            check_same_shape(self.user_mlp, changed, tokens)
        return tokens + self.drop_path(changed)

    def fused(self, tokens: Tokens) -> Tokens | None:
        """The same by fused operations, for a block that is not part of a fused stack.

        Sharded weights are whole only while their block runs.
        """
        if class_of(self) is not Block or not is_fused(tokens):
            return None
        weights = block_weights(self, within=True)
        if weights is None or self.norm1.eps != self.norm2.eps:
            return None
        rate = self.drop_path.rate if self.drop_path.training else 0.0
        highest = max(rate, self.highest_drop_path)
        if rate > 0 and len(tokens) * highest < MIN_DROPPED:
            return None
        assert isinstance(self.mixer, SelfAttention)
        dtype = compute_dtype(tokens)
        return one_block(
            tokens.to(self.residual_dtype or dtype),
            weights,
            self.mixer.num_heads,
            self.mixer.scale,
            self.norm1.eps,
            rate,
            dtype,
        )


def check_user_parts(block: Block) -> None:
    """Raises an error if a user's mixer or MLP takes other arguments."""
    if block.user_mixer:
        forward = block.mixer.forward
        check_takes(f"forward of {block.user_mixer}", forward, "tokens", "grid", "bias")
    if block.user_mlp:
        names = ["tokens", "grid"][: 1 + getattr(block.mlp, "takes_grid", False)]
        check_takes(f"forward of {block.user_mlp}", block.mlp.forward, *names)


def check_same_shape(part: str, result: Any, tokens: Tokens) -> None:
    """Raises an error unless a user's part returns tokens of the same shape."""
    if is_traced(result):
        return
    is_tensor = isinstance(result, Tensor)
    if not is_tensor or result.shape != tokens.shape:
        found = f"a {type(result).__name__}"
        if is_tensor:
            found = f"the shape {tuple(result.shape)}"
        raise UserError(
            f"{part} returned {found}; it must be that of the tokens, "
            f"{tuple(tokens.shape)}."
        )
    if result.dtype == torch.float64 != tokens.dtype:
        raise UserError(
            f"{part} returned {result.dtype} for tokens of {tokens.dtype}; return "
            "result.to(tokens.dtype)."
        )


class DenseBlock(Block):
    """A block whose output, projected to `growth` channels, is concatenated."""

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
