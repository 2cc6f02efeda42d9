"""Softmax attention of a linear's packed q, k, v."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from t2t.ops.availability import HAS_TRITON
from t2t.shapes import Tokens

PackedTokens = Float[Tensor, "batch tokens three_times_dim"]
MAX_TOKENS = 256


def attention_reference(qkv: PackedTokens, num_heads: int, scale: float) -> Tokens:
    """Attention by torch's own kernels; q, k, v stand side by side, heads inside."""
    q, k, v = qkv.unflatten(2, (3, num_heads, -1)).permute(2, 0, 3, 1, 4)
    mixed = F.scaled_dot_product_attention(q, k, v, scale=scale)
    return mixed.transpose(1, 2).flatten(2)


def attention(qkv: PackedTokens, num_heads: int, scale: float) -> Tokens:
    """The same, in one kernel each way where the whole sequence fits one tile."""
    if has_kernel(qkv, num_heads):
        return packed_attention(qkv, num_heads, scale)[0]
    return attention_reference(qkv, num_heads, scale)


def has_kernel(qkv: PackedTokens, num_heads: int) -> bool:
    """Whether the fast path takes these tokens."""
    return (
        HAS_TRITON
        and qkv.is_cuda
        and qkv.dtype in (torch.bfloat16, torch.float16)
        and qkv.shape[1] <= MAX_TOKENS
        and qkv.shape[2] == 3 * num_heads * 64
    )


def key_pieces(tokens: int) -> dict[str, int]:
    """Three powers of two, zero for none, that hold the keys with little to spare."""
    pieces: list[int] = []
    left = tokens
    while left > 0 and len(pieces) < 2:
        pieces.append(max(16, min(128, 1 << (left.bit_length() - 1))))
        left -= pieces[-1]
    pieces.append(max(16, next_power_of_2(left)) if left > 0 else 0)
    first, second, third, *_ = *pieces, 0, 0
    return {"FIRST": first, "SECOND": second, "THIRD": third}


def next_power_of_2(number: int) -> int:
    """The smallest power of two that is no less."""
    return 1 << (number - 1).bit_length()


def packed_forward(qkv: Tensor, num_heads: int, scale: float) -> tuple[Tensor, Tensor]:
    """Output and the rows' log-sums, in base 2."""
    from t2t.ops.kernels.attention import attention_forward
    from t2t.ops.kernels.launch import launch

    qkv = qkv.contiguous()
    batch, tokens, width = qkv.shape
    out = qkv.new_empty(batch, tokens, width // 3)
    log_sum = qkv.new_empty(batch, num_heads, tokens, dtype=torch.float32)
    launch(attention_forward)[(batch * num_heads,)](
        qkv,
        out,
        log_sum,
        tokens,
        num_heads,
        scale,
        HEAD=width // 3 // num_heads,
        **key_pieces(tokens),
        QUERIES=64,
        num_warps=4,
    )
    return out, log_sum


def packed_backward(
    qkv: Tensor,
    out: Tensor,
    log_sum: Tensor,
    grad_out: Tensor,
    num_heads: int,
    scale: float,
) -> Tensor:
    """The packed gradient of q, k and v."""
    from t2t.ops.kernels.attention import attention_backward
    from t2t.ops.kernels.launch import launch

    qkv, grad_out = qkv.contiguous(), grad_out.contiguous()
    batch, tokens, width = qkv.shape
    grad_qkv = torch.empty_like(qkv)
    launch(attention_backward)[(batch * num_heads,)](
        qkv,
        out,
        log_sum,
        grad_out,
        grad_qkv,
        tokens,
        num_heads,
        scale,
        HEAD=width // 3 // num_heads,
        KEYS=max(16, next_power_of_2(tokens)),
        QUERIES=32,
        num_warps=8,
    )
    return grad_qkv


packed_attention = torch.library.triton_op(
    "t2t::packed_attention", packed_forward, mutates_args=()
)
packed_attention_backward = torch.library.triton_op(
    "t2t::packed_attention_backward", packed_backward, mutates_args=()
)


def save_for_backward(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    qkv, ctx.num_heads, ctx.scale = inputs
    ctx.save_for_backward(qkv, *output)


def backward(ctx, grad_out, grad_log_sum):  # type: ignore[no-untyped-def]
    qkv, out, log_sum = ctx.saved_tensors
    grad = packed_attention_backward(
        qkv, out, log_sum, grad_out, ctx.num_heads, ctx.scale
    )
    return grad, None, None


torch.library.register_autograd(
    "t2t::packed_attention", backward, setup_context=save_for_backward
)
