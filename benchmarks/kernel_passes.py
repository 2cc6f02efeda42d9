"""Settings of the passes over memory between products: residual norm and GELU."""

from collections.abc import Iterator
from functools import cache
from itertools import product
from typing import NamedTuple

import torch
import torch.nn.functional as F
from kernel_settings import Setting, Tensors, on_gpu

from t2t.ops.attention_tiles import next_power_of_2


class Residual(NamedTuple):
    """A shape of the residual norm: samples, and how many a branch keeps."""

    title: str
    batch: int
    kept: int
    tokens: int
    dim: int

    def __str__(self) -> str:
        return f"{self.title}: {self.kept} of {self.batch} × {self.tokens} × {self.dim}"


RESIDUALS = (
    Residual("T2T-ViT-14", 256, 243, 197, 384),
    Residual("CIFAR", 1024, 973, 256, 256),
    Residual("CIFAR, half of the tokens", 1024, 973, 128, 256),
)


@cache
def residual_tensors(shape: Residual) -> Tensors:
    """The sum, both gradients, the gain and the index of the kept samples."""
    batch, kept, tokens, dim = shape[1:]
    total = on_gpu(batch, tokens, dim)
    order = on_gpu(batch, dtype=torch.float32).argsort()
    index = torch.where(order < kept, order, -1).to(torch.int32)
    grad_normed = on_gpu(kept, tokens, dim)
    gain = on_gpu(dim, dtype=torch.float32)
    return total, total.flip(0).contiguous(), grad_normed, gain, index


@cache
def residual_in_float64(shape: Residual) -> Tensors:
    """Gradients of the residual and the branch; of gain, shift and bias stacked."""
    total, grad_total, grad_normed, gain, index = residual_tensors(shape)
    kept = index >= 0
    total = total[kept].double().requires_grad_()
    gain = gain.double().requires_grad_()
    shift = torch.zeros_like(gain, requires_grad=True)
    normed = F.layer_norm(total, total.shape[-1:], gain, shift, 1e-5)
    grads = torch.autograd.grad(
        normed, (total, gain, shift), grad_normed[index[kept].long()].double()
    )
    grad_residual = grad_total.double()
    grad_residual[kept] += grads[0]
    grad_branch = torch.empty_like(grad_normed, dtype=torch.float64)
    grad_branch[index[kept].long()] = grad_residual[kept] * 1.05
    vectors = torch.stack([*grads[1:], grad_branch.sum((0, 1))])
    return grad_residual, grad_branch, vectors


def residual_norm(exact: bool) -> Iterator[Setting]:
    """The backward pass, with the sum over the programs' partial sums."""
    for shape in RESIDUALS:
        batch, kept, tokens, dim = shape[1:]
        num_bytes = 2 * tokens * dim * (3 * batch + 2 * kept)
        for rows, warps, programs, stages in (
            *product((1, 2, 4), (1, 2, 4), (2048, 4096, 8192), (3,)),
            *product((1,), (1,), (4096,), (2, 4)),
        ):
            numbers = (rows, warps, programs, stages)
            yield Setting(
                "residual_norm backward",
                str(shape),
                f"rows={rows}, warps={warps}, programs={programs}, stages={stages}",
                num_bytes,
                lambda shape=shape, numbers=numbers: residual_backward(shape, *numbers),
                lambda shape=shape: residual_in_float64(shape),
            )


def residual_backward(
    shape: Residual, rows: int, warps: int, programs: int, stages: int
) -> Tensors:
    """As t2t.ops.residual_norm launches it, but for these numbers."""
    from t2t.ops.kernels.residual_norm import residual_norm_backward

    total, grad_total, grad_normed, gain, index = residual_tensors(shape)
    batch, _, tokens, dim = shape[1:]
    grad_residual, grad_branch = torch.empty_like(total), torch.empty_like(grad_normed)
    parts = max(1, min(-(-tokens // rows), -(-programs // batch)))
    partial = torch.empty(batch * parts, 3, dim, device=total.device)
    residual_norm_backward[(batch, parts)](
        *(total, grad_total, grad_normed, index, index, gain),
        *(grad_residual, grad_branch, partial, tokens, dim, 1.05),
        EPS=1e-5,
        HAS_GRAD_SUM=True,
        HAS_BRANCH_INDEX=True,
        HAS_NORMED_INDEX=True,
        WRITES_BRANCH=True,
        ROWS=rows,
        DIM=next_power_of_2(dim),
        STAGES=stages,
        num_warps=warps,
    )
    return grad_residual, grad_branch, partial.sum(0)


HIDDEN = {
    "T2T-ViT-14": (243 * 197, 1152),
    "CIFAR": (973 * 256, 512),
    "CIFAR, half of the tokens": (973 * 128, 512),
}


@cache
def gelu_in_float64(rows: int, columns: int) -> Tensors:
    """GELU, its gradient and the sum of that over rows."""
    inner = on_gpu(rows, columns).double().requires_grad_()
    out = F.gelu(inner)
    (grad,) = torch.autograd.grad(out, inner, hidden(rows, columns)[1].double())
    return out.detach(), grad, grad.sum(0)


@cache
def hidden(rows: int, columns: int) -> Tensors:
    """A hidden layer and a gradient of its GELU."""
    return on_gpu(rows, columns), on_gpu(rows, columns).flip(0).contiguous()


def gelu(exact: bool) -> Iterator[Setting]:
    """Forward, and backward with the sum over the programs' partial sums."""
    for title, size in HIDDEN.items():
        shape = f"{title}: {size[0]} × {size[1]}"
        num_bytes = 4 * size[0] * size[1]
        for block, warps in product((1024, 2048, 4096, 8192), (4, 8)):
            yield Setting(
                *("gelu forward", shape, f"block={block}, warps={warps}", num_bytes),
                lambda numbers=(*size, block, warps): gelu_forward(*numbers),
                lambda size=size: gelu_in_float64(*size)[:1],
            )
        for rows, columns, warps, stages in product(
            (8, 16, 32), (64, 128, 256), (4, 8), (2, 3)
        ):
            text = f"rows={rows}, columns={columns}, warps={warps}, stages={stages}"
            numbers = (*size, rows, columns, warps, stages)
            yield Setting(
                *("gelu backward", shape, text, num_bytes * 3 // 2),
                lambda numbers=numbers: gelu_backward(*numbers),
                lambda size=size: gelu_in_float64(*size)[1:],
            )


def gelu_forward(rows: int, columns: int, block: int, warps: int) -> Tensors:
    """As t2t.ops.gelu launches it, but for these numbers."""
    from t2t.ops.kernels import gelu as kernels

    inner, _ = hidden(rows, columns)
    out = torch.empty_like(inner)
    kernels.gelu_forward[(-(-inner.numel() // block),)](
        inner, out, inner.numel(), BLOCK=block, num_warps=warps
    )
    return (out,)


def gelu_backward(
    rows: int, columns: int, tile_rows: int, tile_columns: int, warps: int, stages: int
) -> Tensors:
    """As t2t.ops.gelu launches it, but for these numbers."""
    from t2t.ops.kernels import gelu as kernels

    inner, grad = hidden(rows, columns)
    grad_inner = torch.empty_like(inner)
    blocks = -(-columns // tile_columns)
    parts = max(1, min(-(-rows // tile_rows), 1056 // blocks))
    partial = torch.empty(parts, columns, device=inner.device)
    kernels.gelu_backward[(parts, blocks)](
        *(inner, grad, grad_inner, partial, rows, columns),
        ROWS=tile_rows,
        COLUMNS=tile_columns,
        STAGES=stages,
        num_warps=warps,
    )
    return grad_inner, partial.sum(0)
