"""Layers of the backbone."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from t2t.errors import UserError
from t2t.models.hooks import is_hooked, is_traced
from t2t.models.token_grid import Grid, guess_grid, resize_projection
from t2t.ops.attention import attention
from t2t.shapes import Tokens

Bias = Float[Tensor, "one heads queries keys"]
AttentionMap = Float[Tensor, "batch heads queries keys"]


def with_grid(module: nn.Module, x: Tokens, grid: Grid) -> Tokens:
    """The output of a layer, which gets the token grid too if it `takes_grid`."""
    return module(x, grid) if getattr(module, "takes_grid", False) else module(x)


class DropPath(nn.Module):
    """Stochastic depth: drops a branch for whole samples while training."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        if self.rate == 0 or not self.training:
            return x
        kept = torch.rand(x.shape[0], *[1] * (x.ndim - 1), device=x.device) >= self.rate
        return x * (kept / (1 - self.rate)).to(x.dtype)

    def extra_repr(self) -> str:
        return f"rate={self.rate:.3f}"


class GhostLinear(nn.Module):
    """A linear layer that computes one share of its outputs and scales it for the rest.

    Every further share is the computed one times a learned number per channel.
    """

    def __init__(
        self,
        in_dim: int,
        out_dim: int,
        num_shares: int,
        *,
        bias: bool,
        activation: nn.Module | None = None,
    ) -> None:
        super().__init__()
        if out_dim % num_shares:
            raise UserError(
                f"A ghost layer of width {out_dim} cannot be cut into {num_shares} "
                "equal shares; choose a multiple."
            )
        share = out_dim // num_shares
        self.linear = nn.Linear(in_dim, share, bias=bias)
        self.scales = nn.ParameterList(
            # As published: the range of a convolution with one input.
            nn.Parameter(torch.empty(share).uniform_(-1, 1))
            for _ in range(num_shares - 1)
        )
        self.activation = activation or nn.Identity()

    def forward(self, x: Tokens) -> Tokens:
        computed = self.activation(self.linear(x))
        ghosts = [self.activation(computed * scale) for scale in self.scales]
        return torch.cat([computed, *ghosts], dim=-1)


class GhostQKV(nn.Module):
    """Queries, keys and values, half of each computed and half scaled from it."""

    def __init__(self, dim: int, *, bias: bool) -> None:
        super().__init__()
        self.q = GhostLinear(dim, dim, 2, bias=bias)
        self.k = GhostLinear(dim, dim, 2, bias=bias)
        self.v = GhostLinear(dim, dim, 2, bias=bias)

    def forward(self, x: Tokens) -> Tokens:
        return torch.cat([self.q(x), self.k(x), self.v(x)], dim=-1)


class SqueezeExcite(nn.Module):
    """Channel attention: gates each channel by its mean over all tokens."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        few = dim // 16  # as published
        self.squeeze = nn.Linear(dim, few, bias=False)
        self.excite = nn.Linear(few, dim, bias=False)

    def forward(self, x: Tokens) -> Tokens:
        summary = x.mean(dim=1, keepdim=True)
        return x * torch.sigmoid(self.excite(F.relu(self.squeeze(summary))))


class SequenceProjection(nn.Module):
    """Linformer: mixes the keys, and the values, of all positions into a few."""

    needs_all_tokens = True

    def __init__(self, num_prefix: int, grid: Grid, out_tokens: int) -> None:
        super().__init__()
        self.num_prefix = num_prefix
        self.grid = grid
        in_tokens = num_prefix + grid[0] * grid[1]
        self.keys = nn.Parameter(torch.randn(out_tokens, in_tokens) * in_tokens**-0.5)
        self.values = nn.Parameter(torch.randn(out_tokens, in_tokens) * in_tokens**-0.5)

    def forward(
        self, key: Tensor, value: Tensor, grid: Grid
    ) -> tuple[Float[Tensor, "batch heads few dim"], ...]:
        keys, values = (
            resize_projection(weight, self.num_prefix, self.grid, grid)
            for weight in (self.keys, self.values)
        )
        return keys @ key, values @ value

    def resize_state(self, state: dict[str, Tensor], likely: Grid) -> Grid | None:
        """Interpolates projections of another grid in place; returns that grid."""
        old = None
        for name in ("keys", "values"):
            if name not in state:
                continue
            old = guess_grid(state[name].shape[1] - self.num_prefix, likely)
            if old and old != self.grid:
                state[name] = resize_projection(
                    state[name].float(), self.num_prefix, old, self.grid
                )
        return old


class AttentionWeights(nn.Module):
    """The softmax of attention logits, with dropout.

    timm's `AttentionExtract` finds them by the names `attn` and `attn_drop`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.attn_drop = nn.Dropout(0.0)

    def forward(self, logits: AttentionMap) -> AttentionMap:
        return self.attn_drop(logits.softmax(dim=-1))

    def has_hooks(self) -> bool:
        """Whether hooks need the attention map, which is not stored otherwise."""
        return is_hooked(self) or is_hooked(self.attn_drop)


class SelfAttention(nn.Module):
    """Multi-head attention; its projection, shortening and gate can be replaced."""

    def __init__(
        self, dim: int, num_heads: int, *, qkv: nn.Module, scale: float | None = None
    ) -> None:
        super().__init__()
        if dim % num_heads:
            raise UserError(
                f"dim={dim} is not divisible by num_heads={num_heads}; choose a number "
                "of heads that divides it."
            )
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5 if scale is None else scale
        self.qkv = qkv
        self.shorten: SequenceProjection | None = None
        self.attn = AttentionWeights()
        self.proj = nn.Linear(dim, dim)
        self.gate: nn.Module = nn.Identity()

    def forward(self, x: Tokens, grid: Grid, bias: Bias | None = None) -> Tokens:
        qkv = self.project(x, grid)
        dropout = self.attn.attn_drop
        drop_rate = dropout.p if dropout.training else 0.0
        # The ONNX exporter mistakes the layout of fused attention with a bias.
        is_exported = bias is not None and torch.compiler.is_exporting()
        if is_traced(x) or self.attn.has_hooks() or is_exported:
            query, key, value = self.heads(qkv, grid)
            mixed = self.attn(self.logits(query, key, bias, grid)) @ value
        elif bias is None and self.shorten is None and drop_rate == 0:
            return self.gate(self.proj(attention(qkv, self.num_heads, self.scale)))
        else:
            query, key, value = self.heads(qkv, grid)
            mask = None if bias is None else bias.to(query.dtype)
            mixed = F.scaled_dot_product_attention(
                query, key, value, mask, drop_rate, scale=self.scale
            )
        return self.gate(self.proj(mixed.transpose(1, 2).flatten(2)))

    def weights(self, x: Tokens, grid: Grid, bias: Bias | None = None) -> AttentionMap:
        """The attention map, which `forward` does not store."""
        query, key, _ = self.heads(self.project(x, grid), grid)
        return self.logits(query, key, bias, grid).softmax(dim=-1)

    def project(self, x: Tokens, grid: Grid) -> Tokens:
        """Queries, keys and values of all tokens, side by side."""
        return with_grid(self.qkv, x, grid)

    def logits(
        self, query: Tensor, key: Tensor, bias: Bias | None, grid: Grid
    ) -> AttentionMap:
        """The attention logits, with the position bias."""
        logits = self.scale * (query @ key.transpose(-2, -1))
        return logits if bias is None else logits + bias

    def heads(self, qkv: Tensor, grid: Grid) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, by heads."""
        parts = qkv.unflatten(-1, (3, self.num_heads, -1))
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
        if self.shorten is not None:
            key, value = self.shorten(key, value, grid)
        return query, key, value


class Mlp(nn.Module):
    """Two linear layers with GELU between them."""

    def __init__(self, expand: nn.Module, hidden_dim: int, dim: int) -> None:
        super().__init__()
        self.expand = expand
        self.reduce = nn.Linear(hidden_dim, dim)

    def forward(self, x: Tokens) -> Tokens:
        return self.reduce(self.expand(x))
