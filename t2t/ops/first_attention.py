"""Attention of the first tokens only, with its projection to q, k, v."""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from t2t.ops.attention_tiles import next_power_of_2
from t2t.ops.availability import runs_kernels
from t2t.shapes import Tokens

Weight = Float[Tensor, "three_times_width dim"]
Bias = Float[Tensor, "three_times_width"]

MAX_READ = 2
"""The class token and the distillation token."""
MAX_HEAD = 256
VALUES = 4096
"""Products of queries and keys that a program computes at a time."""


def first_attention_reference(
    tokens: Tokens,
    weight: Weight,
    bias: Bias | None,
    num_heads: int,
    scale: float,
    num_read: int,
) -> Tokens:
    """Attention for the queries of the first `num_read` tokens, in float32."""
    width = len(weight) // 3
    by_head = (num_heads, width // num_heads)
    query, kv = first_projections(tokens, weight, bias, num_read)
    query = query.unflatten(-1, by_head)
    key, value = kv.unflatten(-1, (2, *by_head)).unbind(2)
    # Products and sums: a matrix product with one row would leave tensor cores idle.
    wide = torch.promote_types(tokens.dtype, torch.float32)
    query, key, value = query.to(wide), key.to(wide), value.to(wide)
    logits = (query[:, :, None] * key[:, None]).sum(-1) * scale
    weights = logits.softmax(dim=2)
    mixed = (weights[..., None] * value[:, None]).sum(2)
    return mixed.flatten(2).to(tokens.dtype)


def first_attention(
    tokens: Tokens,
    weight: Weight,
    bias: Bias | None,
    num_heads: int,
    scale: float,
    num_read: int,
) -> Tokens:
    """The same by one kernel forward and one backward."""
    arguments = (tokens, weight.to(tokens.dtype), bias, num_heads, scale, num_read)
    if (
        runs_kernels(tokens, tokens.dtype)
        and 1 <= num_read <= MAX_READ
        and len(weight) // 3 // num_heads <= MAX_HEAD
    ):
        from t2t.ops.operations import fused_first_attention

        mixed: Tokens = fused_first_attention(*arguments)[0]
        return mixed
    return first_attention_reference(*arguments)


def first_projections(
    tokens: Tensor, weight: Tensor, bias: Tensor | None, num_read: int
) -> tuple[Tensor, Tensor]:
    """Queries of the first tokens; keys and values of all, packed."""
    width = len(weight) // 3
    bias = None if bias is None else bias.to(tokens.dtype)
    return (
        F.linear(
            tokens[:, :num_read], weight[:width], None if bias is None else bias[:width]
        ),
        F.linear(tokens, weight[width:], None if bias is None else bias[width:]),
    )


def fused_forward(
    tokens: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    num_heads: int,
    scale: float,
    num_read: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The output, and for the backward pass: queries, keys and values, log-sums."""
    query, kv = first_projections(tokens, weight, bias, num_read)
    return *forward_of(query, kv, num_heads, scale), query, kv


def forward_of(
    query: Tensor, kv: Tensor, num_heads: int, scale: float
) -> tuple[Tensor, Tensor]:
    """The output and each query's log-sum-exp, in base 2."""
    from t2t.ops.kernels.first_attention import first_attention_forward
    from t2t.ops.kernels.launch import launch

    query, kv = query.contiguous(), kv.contiguous()
    batch, num_read, _ = query.shape
    out = torch.empty_like(query)
    log_sum = query.new_empty(batch, num_heads, num_read, dtype=torch.float32)
    launch(first_attention_forward)[(batch * num_heads,)](
        *(query, kv, out, log_sum, kv.shape[1], scale),
        **launch_settings(query, num_heads),
    )
    return out, log_sum


def backward_of(
    query: Tensor,
    kv: Tensor,
    out: Tensor,
    log_sum: Tensor,
    grad_out: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Gradients of the queries, and of keys and values packed."""
    from t2t.ops.kernels.first_attention import first_attention_backward
    from t2t.ops.kernels.launch import launch

    query, kv, grad_out = query.contiguous(), kv.contiguous(), grad_out.contiguous()
    grad_query, grad_kv = torch.empty_like(query), torch.empty_like(kv)
    batch, num_heads, _ = log_sum.shape
    launch(first_attention_backward)[(batch * num_heads,)](
        *(query, kv, out, log_sum, grad_out, grad_query, grad_kv, kv.shape[1], scale),
        **launch_settings(query, num_heads),
    )
    return grad_query, grad_kv


def launch_settings(query: Tensor, num_heads: int) -> dict[str, Any]:
    """The sizes that the kernels are compiled for."""
    num_read, width = query.shape[1:]
    head = width // num_heads
    dim = next_power_of_2(head)
    return {
        "HEADS": num_heads,
        "HEAD": head,
        "READ": num_read,
        "KEYS": min(256, VALUES // num_read // dim),
        "DIM": dim,
        "STAGES": 2,
        "num_warps": 4,
    }


def fused_backward(
    tokens: Tensor,
    weight: Tensor,
    query: Tensor,
    kv: Tensor,
    out: Tensor,
    log_sum: Tensor,
    grad_out: Tensor,
    scale: float,
    has_bias: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of tokens, weight and bias; the last is empty without a bias."""
    grad_query, grad_kv = backward_of(query, kv, out, log_sum, grad_out, scale)
    num_read, width = query.shape[1:]
    grad_tokens = grad_kv @ weight[width:]
    grad_tokens[:, :num_read] += grad_query @ weight[:width]
    grad_weight = torch.cat(
        [
            grad_query.flatten(0, 1).T @ tokens[:, :num_read].flatten(0, 1),
            grad_kv.flatten(0, 1).T @ tokens.flatten(0, 1),
        ]
    )
    if not has_bias:
        return grad_tokens, grad_weight, grad_out.new_empty(0, dtype=torch.float32)
    # The weights of a query add up to 1 whatever is added to all keys.
    grad_bias = torch.cat(
        [
            grad_query.sum((0, 1), dtype=torch.float32),
            grad_query.new_zeros(width, dtype=torch.float32),
            grad_out.sum((0, 1), dtype=torch.float32),
        ]
    )
    return grad_tokens, grad_weight, grad_bias
