"""From the tokenizer's features to the tokens that enter the first block."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from t2t.ops.attention_tiles import next_power_of_2
from t2t.ops.availability import runs_kernels
from t2t.ops.partial_sums import sum_partials
from t2t.shapes import Tokens

Vector = Float[Tensor, "dim"]
Rank = Int64[Tensor, "batch tokens"]
"""Each image token's index in a random order; those below a count are kept."""
VALUES = 2048
"""Values that a program computes at a time."""
PROGRAMS = 1024


class TokenParts(NamedTuple):
    """The features of image tokens, and what is added before and to all of them."""

    features: Tokens
    bias: Vector | None
    """Bias of the layer that computed the features; not yet added to them."""
    prefix: Float[Tensor, "one prefix dim"] | None

    def cat(self) -> Tokens:
        """Prefix and image tokens, in the features' dtype."""
        tokens = self.features
        if self.bias is not None:
            tokens = tokens + self.bias.to(tokens.dtype)
        if self.prefix is None:
            return tokens
        prefix = self.prefix.to(tokens.dtype).expand(tokens.shape[0], -1, -1)
        return torch.cat([prefix, tokens], dim=1)


def embed_reference(
    parts: TokenParts,
    table: Float[Tensor, "tokens dim"] | None,
    rank: Rank | None,
    count: int,
    dtype: torch.dtype,
) -> Tokens:
    """Prefix tokens and kept image tokens with bias and positions, in `dtype`."""
    wide = torch.promote_types(parts.features.dtype, torch.float32)
    tokens = parts._replace(features=parts.features.to(wide)).cat()
    tokens = tokens if table is None else tokens + table
    if rank is not None:
        first = tokens.shape[1] - rank.shape[1]
        order = rank.argsort(1)[:, :count, None].expand(-1, -1, tokens.shape[2])
        kept = tokens[:, first:].gather(1, order)
        tokens = torch.cat([tokens[:, :first], kept], dim=1)
    return tokens.to(dtype)


def embed(
    parts: TokenParts,
    table: Float[Tensor, "tokens dim"] | None,
    rank: Rank | None,
    count: int,
    dtype: torch.dtype,
) -> Tokens:
    """The same by one kernel forward and one backward."""
    features, bias, prefix = parts
    if runs_kernels(features, features.dtype) and features.shape[2] <= VALUES:
        from t2t.ops.operations import fused_embedding

        tokens: Tokens = fused_embedding(
            features, bias, prefix, table, rank, count, dtype
        )
        return tokens
    return embed_reference(parts, table, rank, count, dtype)


def fused_forward(
    features: Tensor,
    bias: Tensor | None,
    prefix: Tensor | None,
    table: Tensor | None,
    rank: Tensor | None,
    count: int,
    dtype: torch.dtype,
) -> Tensor:
    """The tokens; without a rank `count` is the number of image tokens."""
    from t2t.ops.kernels.embedding import embed_forward
    from t2t.ops.kernels.launch import launch

    features = features.contiguous()
    batch, tokens, dim = features.shape
    num_prefix = 0 if prefix is None else prefix.shape[1]
    out = features.new_empty(batch, num_prefix + count, dim, dtype=dtype)
    others = (
        features if each is None else each.contiguous()
        for each in (bias, prefix, table, rank)
    )
    rows, grid = layout(batch, num_prefix + tokens, dim)
    launch(embed_forward)[grid](
        *(features, *others, out, batch, tokens, count, dim),
        PREFIX=num_prefix,
        HAS_BIAS=bias is not None,
        HAS_TABLE=table is not None,
        HAS_RANK=rank is not None,
        ROWS=rows,
        DIM=next_power_of_2(dim),
        num_warps=4,
    )
    return out


def fused_backward(
    grad: Tensor,
    rank: Tensor | None,
    tokens: int,
    num_prefix: int,
    need_bias: bool,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the features, of all tokens summed over the batch, of the bias."""
    from t2t.ops.kernels.embedding import embed_backward
    from t2t.ops.kernels.launch import launch

    grad = grad.contiguous()
    batch, count, dim = grad.shape
    grad_features = grad.new_empty(batch, tokens, dim, dtype=dtype)
    rows, grid = layout(batch, num_prefix + tokens, dim)
    single = torch.float32
    partial = grad.new_empty(grid[1], num_prefix + tokens, dim, dtype=single)
    launch(embed_backward)[grid](
        *(grad, grad if rank is None else rank.contiguous(), grad_features, partial),
        *(batch, tokens, count - num_prefix, dim),
        PREFIX=num_prefix,
        HAS_RANK=rank is not None,
        ROWS=rows,
        DIM=next_power_of_2(dim),
        num_warps=4,
    )
    table = sum_partials(partial)
    bias = sum_partials(table[num_prefix:]) if need_bias else table.new_empty(0)
    return grad_features, table, bias


def layout(batch: int, tokens: int, dim: int) -> tuple[int, tuple[int, int]]:
    """Rows of a program, and the grid of programs: blocks of tokens by samples."""
    rows = max(1, VALUES // next_power_of_2(dim))
    blocks = -(-tokens // rows)
    return rows, (blocks, max(1, min(batch, -(-PROGRAMS // blocks))))
