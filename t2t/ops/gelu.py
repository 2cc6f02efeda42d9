"""Linear layer and GELU, whose backward kernel also sums the bias's gradient."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from t2t.ops.availability import runs_kernels
from t2t.ops.partial_sums import sum_partials

Bias = Float[Tensor, "hidden"]
Hidden = Float[Tensor, "batch tokens hidden"]


def linear_gelu_reference(
    x: Float[Tensor, "batch tokens dim"],
    weight: Float[Tensor, "hidden dim"],
    bias: Bias,
) -> Hidden:
    """GELU(x·weightᵀ + bias)."""
    return F.gelu(F.linear(x, weight.to(x.dtype), bias.to(x.dtype)))


def linear_gelu(
    x: Float[Tensor, "batch tokens dim"],
    weight: Float[Tensor, "hidden dim"],
    bias: Bias,
    rounded: Bias | None = None,
) -> Hidden:
    """The same, with GELU in one kernel forward and one backward.

    `rounded` is the bias in the dtype of x, if it is known already.
    """
    if runs_kernels(x, x.dtype):
        from t2t.ops.operations import fused_gelu

        rounded = bias.detach() if rounded is None else rounded
        inner = F.linear(x, weight.to(x.dtype), rounded.to(x.dtype))
        return fused_gelu(inner, bias)
    return linear_gelu_reference(x, weight, bias)


def fused_forward(inner: Tensor, bias: Tensor) -> Tensor:
    """GELU of `inner`, which includes the bias; `bias` is an input for its gradient."""
    from t2t.ops.kernels.gelu import gelu_forward
    from t2t.ops.kernels.launch import launch

    inner = inner.contiguous()
    out = torch.empty_like(inner)
    block = 4096
    launch(gelu_forward)[(-(-inner.numel() // block),)](
        inner, out, inner.numel(), BLOCK=block, num_warps=4
    )
    return out


def fused_backward(inner: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of `inner` and of the bias."""
    from t2t.ops.kernels.gelu import gelu_backward
    from t2t.ops.kernels.launch import launch

    inner, grad = inner.contiguous(), grad.contiguous()
    columns = inner.shape[-1]
    rows = inner.numel() // columns
    grad_inner = torch.empty_like(inner)
    tile_rows, tile_columns = 16, 128
    blocks = -(-columns // tile_columns)
    parts = max(1, min(-(-rows // tile_rows), 1056 // blocks))
    partial = torch.empty(parts, columns, dtype=torch.float32, device=inner.device)
    launch(gelu_backward)[(parts, blocks)](
        inner,
        grad,
        grad_inner,
        partial,
        rows,
        columns,
        ROWS=tile_rows,
        COLUMNS=tile_columns,
        STAGES=2,
        num_warps=4,
    )
    return grad_inner, sum_partials(partial)
