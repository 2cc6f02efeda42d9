"""Softmax attention of packed q, k, v, as one linear layer outputs them."""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from t2t.ops.attention_tiles import (
    BackwardTiles,
    Tiles,
    backward_tiles,
    forward_tiles,
)
from t2t.ops.availability import runs_matmul_kernels
from t2t.shapes import Tokens

PackedTokens = Float[Tensor, "batch tokens three_times_dim"]
MAX_TOKENS = 1056
"""A grid of 32 × 32 tokens, a class token and up to 31 registers."""
HEAD_SIZES = (16, 32, 64)
"""Channels of a head; tiles of wider heads do not fit the shared memory."""


def attention_reference(qkv: PackedTokens, num_heads: int, scale: float) -> Tokens:
    """Attention by torch's own kernels; the last axis is (q, k, v) × heads × dims."""
    q, k, v = qkv.unflatten(2, (3, num_heads, -1)).permute(2, 0, 3, 1, 4)
    mixed = F.scaled_dot_product_attention(q, k, v, scale=scale)
    return mixed.transpose(1, 2).flatten(2)


def attention(qkv: PackedTokens, num_heads: int, scale: float) -> Tokens:
    """The same by Triton kernels for short sequences, which read packed tensors."""
    # The kernels take the largest logit before scaling: the scale must be positive.
    if scale > 0 and has_kernel(qkv, num_heads):
        from t2t.ops.operations import packed_attention

        return packed_attention(qkv, num_heads, scale)[0]
    return attention_reference(qkv, num_heads, scale)


def has_kernel(qkv: PackedTokens, num_heads: int) -> bool:
    """Whether the kernels take these tokens."""
    return (
        runs_matmul_kernels(qkv, qkv.dtype)
        and qkv.shape[1] <= MAX_TOKENS
        and qkv.shape[2] // 3 // num_heads in HEAD_SIZES
    )


def forward_by(
    tiles: Tiles, qkv: Tensor, num_heads: int, scale: float
) -> tuple[Tensor, Tensor]:
    """The output and each query's log-sum-exp, in base 2."""
    from t2t.ops.kernels.attention_forward import attention_forward
    from t2t.ops.kernels.launch import launch

    qkv = qkv.contiguous()
    batch, tokens, width = qkv.shape
    out = qkv.new_empty(batch, tokens, width // 3)
    log_sum = qkv.new_empty(batch, num_heads, tokens, dtype=torch.float32)
    launch(attention_forward)[(batch * num_heads * tiles.count(tokens),)](
        qkv,
        out,
        log_sum,
        scale,
        TOKENS=tokens,
        HEADS=num_heads,
        HEAD=width // 3 // num_heads,
        QUERIES=tiles.rows,
        LAST_QUERIES=tiles.last_rows(tokens),
        KEYS=tiles.columns,
        LAST_KEYS=tiles.last_columns(tokens),
        STAGES=tiles.stages,
        num_warps=tiles.warps,
    )
    return out, log_sum


def backward_by(
    tiles: BackwardTiles,
    qkv: Tensor,
    out: Tensor,
    log_sum: Tensor,
    grad_out: Tensor,
    num_heads: int,
    scale: float,
) -> Tensor:
    """The packed gradient of q, k and v."""
    from t2t.ops.kernels.attention_backward import key_gradients, query_gradients

    qkv, grad_out = qkv.contiguous(), grad_out.contiguous()
    grad_qkv = torch.empty_like(qkv)
    # Sums of out·grad_out per query: the first launch stores them for the second.
    inner = torch.empty_like(log_sum)
    tensors = (qkv, out, log_sum, grad_out, inner, grad_qkv)
    backward_launch(query_gradients, tiles.queries, tensors, scale)
    backward_launch(key_gradients, tiles.keys, tensors, scale)
    return grad_qkv


def backward_launch(
    kernel: Any, tiles: Tiles, tensors: tuple[Tensor, ...], scale: float
) -> None:
    """Launches one backward kernel: gradients of queries, or of keys and values."""
    from t2t.ops.kernels.launch import launch

    qkv, _, log_sum, *_ = tensors
    batch, num_heads, tokens = log_sum.shape
    launch(kernel)[(batch * num_heads * tiles.count(tokens),)](
        *tensors,
        scale,
        TOKENS=tokens,
        HEADS=num_heads,
        HEAD=qkv.shape[2] // 3 // num_heads,
        ROWS=tiles.rows,
        LAST_ROWS=tiles.last_rows(tokens),
        COLUMNS=tiles.columns,
        LAST_COLUMNS=tiles.last_columns(tokens),
        STAGES=tiles.stages,
        num_warps=tiles.warps,
    )


def packed_forward(qkv: Tensor, num_heads: int, scale: float) -> tuple[Tensor, Tensor]:
    """The output and each query's log-sum-exp, in base 2."""
    return forward_by(forward_tiles(qkv.shape[1]), qkv, num_heads, scale)


def packed_backward(
    qkv: Tensor,
    out: Tensor,
    log_sum: Tensor,
    grad_out: Tensor,
    num_heads: int,
    scale: float,
) -> Tensor:
    """The packed gradient of q, k and v."""
    tiles = backward_tiles(qkv.shape[1])
    return backward_by(tiles, qkv, out, log_sum, grad_out, num_heads, scale)
