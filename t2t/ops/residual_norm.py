"""Residual sum, drop path (stochastic depth) and LayerNorm as one operation."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from t2t.ops.attention_tiles import next_power_of_2
from t2t.ops.availability import runs_kernels
from t2t.ops.kept_samples import KeptIndex, kept_samples
from t2t.ops.partial_sums import sum_partials
from t2t.shapes import Tokens

Vector = Float[Tensor, "dim"]


class NormTiles(NamedTuple):
    """How the backward kernel is launched."""

    values: int
    """Values that a program computes at a time."""
    warps: int
    programs: int
    """Minimum number of programs; each writes sums of the parameters' gradients."""
    stages: int

    def rows(self, dim: int) -> int:
        """Rows that a program computes at a time."""
        return max(1, self.values // next_power_of_2(dim))


NARROW_TILES = NormTiles(values=1, warps=1, programs=2048, stages=4)
WIDE_TILES = NormTiles(values=1024, warps=2, programs=2048, stages=3)


def norm_tiles(dim: int) -> NormTiles:
    """The fastest on an H200 for this many channels."""
    return NARROW_TILES if dim <= 256 else WIDE_TILES


def residual_norm_reference(
    residual: Tokens,
    branch: Tokens,
    branch_bias: Vector,
    gain: Vector,
    shift: Vector,
    branch_index: KeptIndex | None,
    normed_index: KeptIndex | None,
    num_normed: int,
    scale: float,
    eps: float,
) -> tuple[Tokens, Tokens]:
    """residual + scale·(branch + bias), and its LayerNorm for the next branch.

    The branch holds only the samples that it keeps, in the order of `branch_index`; the
    normed tokens only those that the next branch keeps, in the order of `normed_index`.
    """
    update = (branch + branch_bias) * scale
    if branch_index is not None:
        kept = (branch_index >= 0)[:, None, None]
        update = torch.where(kept, update[branch_index.clamp(min=0)], 0)
    total = residual + update.to(residual.dtype)
    normed = F.layer_norm(total, total.shape[-1:], gain, shift, eps)
    if normed_index is not None:
        normed = kept_samples(normed, normed_index, num_normed)
    return total, normed.to(branch.dtype)


def residual_norm(
    residual: Tokens,
    branch: Tokens,
    branch_bias: Vector,
    gain: Vector,
    shift: Vector,
    branch_index: KeptIndex | None,
    normed_index: KeptIndex | None,
    num_normed: int,
    scale: float,
    eps: float,
) -> tuple[Tokens, Tokens]:
    """The same by one kernel forward and one backward."""
    arguments = (residual, branch, branch_bias, gain, shift)
    settings = (branch_index, normed_index, num_normed, scale, eps)
    if has_kernel(residual, branch.dtype):
        from t2t.ops.operations import fused_residual_norm

        return fused_residual_norm(*arguments, *settings)
    return residual_norm_reference(*arguments, *settings)


def norm_reference(
    tokens: Tokens,
    gain: Vector,
    shift: Vector,
    index: KeptIndex | None,
    num_normed: int,
    eps: float,
    dtype: torch.dtype,
) -> Tokens:
    """LayerNorm of the kept samples in `dtype`, computed in float32 or better."""
    wide = torch.promote_types(tokens.dtype, torch.float32)
    normed = F.layer_norm(
        tokens.to(wide), tokens.shape[-1:], gain.to(wide), shift.to(wide), eps
    ).to(dtype)
    return normed if index is None else kept_samples(normed, index, num_normed)


def norm(
    tokens: Tokens,
    gain: Vector,
    shift: Vector,
    index: KeptIndex | None,
    num_normed: int,
    eps: float,
    dtype: torch.dtype,
) -> Tokens:
    """The same by one kernel forward and one backward."""
    arguments = (tokens, gain, shift, index, num_normed, eps, dtype)
    if has_kernel(tokens, dtype):
        from t2t.ops.operations import fused_norm

        normed: Tokens = fused_norm(*arguments)
        return normed
    return norm_reference(*arguments)


def has_kernel(residual: Tokens, dtype: torch.dtype) -> bool:
    """Whether the kernels take these tokens, with branches of this dtype."""
    return runs_kernels(residual, dtype) and residual.shape[-1] <= 1024


def fused_forward(
    residual: Tensor,
    branch: Tensor,
    branch_bias: Tensor,
    gain: Tensor,
    shift: Tensor,
    branch_index: Tensor | None,
    normed_index: Tensor | None,
    num_normed: int,
    scale: float,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """The sum and the normed tokens."""
    residual, branch = residual.contiguous(), branch.contiguous()
    total = torch.empty_like(residual)
    normed = branch.new_empty(num_normed, *residual.shape[1:])
    tensors = (residual, branch, branch_bias, branch_index, normed_index, gain, shift)
    launch_forward(tensors, total, normed, scale, eps)
    return total, normed


def norm_forward(
    tokens: Tensor,
    gain: Tensor,
    shift: Tensor,
    index: Tensor | None,
    num_normed: int,
    eps: float,
    dtype: torch.dtype,
) -> Tensor:
    """The normed tokens of the kept samples."""
    tokens = tokens.contiguous()
    normed = tokens.new_empty(num_normed, *tokens.shape[1:], dtype=dtype)
    tensors = (tokens, None, None, None, index, gain, shift)
    launch_forward(tensors, None, normed, 1.0, eps)
    return normed


def launch_forward(
    tensors: tuple[Tensor | None, ...],
    total: Tensor | None,
    normed: Tensor,
    scale: float,
    eps: float,
) -> None:
    """Launches the kernel on residual, branch, bias, both indices, gain and shift.

    Without a branch it computes the norm only.
    """
    from t2t.ops.kernels.launch import launch
    from t2t.ops.kernels.residual_norm import residual_norm_forward

    residual, branch, bias, branch_index, normed_index, gain, shift = tensors
    assert residual is not None
    batch, tokens, dim = residual.shape
    rows = batch * tokens
    tile = 4
    launch(residual_norm_forward)[((rows + tile - 1) // tile,)](
        residual,
        branch if branch is not None else residual,
        bias if bias is not None else gain,
        branch_index if branch_index is not None else gain,
        normed_index if normed_index is not None else gain,
        gain,
        shift,
        total if total is not None else normed,
        normed,
        rows,
        tokens,
        dim,
        scale,
        EPS=eps,
        HAS_BRANCH=branch is not None,
        HAS_BRANCH_INDEX=branch_index is not None,
        HAS_NORMED_INDEX=normed_index is not None,
        ROWS=tile,
        DIM=next_power_of_2(dim),
        num_warps=2,
    )


def shares_gradient(
    total: Tensor, grad_normed: Tensor, branch_index: Tensor | None, scale: float
) -> bool:
    """Whether branch and residual have the same gradient: nothing dropped or scaled."""
    return branch_index is None and scale == 1 and total.dtype == grad_normed.dtype


def fused_backward(
    total: Tensor,
    grad_total: Tensor | None,
    grad_normed: Tensor,
    gain: Tensor,
    branch_index: Tensor | None,
    normed_index: Tensor | None,
    num_branch: int,
    scale: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the residual, of the branch, and of gain, shift and bias stacked.

    The gradient of the branch is empty if it equals that of the residual.
    """
    shares = shares_gradient(total, grad_normed, branch_index, scale)
    kept = 0 if shares else num_branch
    grad_branch = grad_normed.new_empty(kept, *total.shape[1:])
    grad_total = None if grad_total is None else grad_total.contiguous()
    grads = (grad_total, grad_normed.contiguous(), grad_branch)
    indices = (branch_index, normed_index)
    grad_residual, vectors = launch_backward(total, grads, gain, indices, scale, eps)
    return grad_residual, grad_branch, vectors


def norm_backward(
    tokens: Tensor, grad_normed: Tensor, gain: Tensor, index: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    """Gradients of the tokens, and of gain and shift in the first two of three rows."""
    grads = (None, grad_normed.contiguous(), grad_normed.new_empty(0))
    return launch_backward(tokens.contiguous(), grads, gain, (None, index), 1.0, eps)


def launch_backward(
    total: Tensor,
    grads: tuple[Tensor | None, Tensor, Tensor],
    gain: Tensor,
    indices: tuple[Tensor | None, Tensor | None],
    scale: float,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """Gradients of the residual, and of gain, shift and bias stacked.

    `grads` are those of the sum and of the norm, and a tensor that the gradient of the
    branch is written to, unless it is empty.
    """
    from t2t.ops.kernels.launch import launch
    from t2t.ops.kernels.residual_norm import residual_norm_backward

    grad_total, grad_normed, grad_branch = grads
    branch_index, normed_index = indices
    batch, tokens, dim = total.shape
    grad_residual = torch.empty_like(total)
    tiles = norm_tiles(dim)
    rows = tiles.rows(dim)
    parts = max(1, min(-(-tokens // rows), -(-tiles.programs // batch)))
    partial = total.new_empty(batch * parts, 3, dim, dtype=torch.float32)
    launch(residual_norm_backward)[(batch, parts)](
        total,
        grad_total if grad_total is not None else total,
        grad_normed,
        branch_index if branch_index is not None else gain,
        normed_index if normed_index is not None else gain,
        gain,
        grad_residual,
        grad_branch if len(grad_branch) else grad_residual,
        partial,
        tokens,
        dim,
        scale,
        EPS=eps,
        HAS_GRAD_SUM=grad_total is not None,
        HAS_BRANCH_INDEX=branch_index is not None,
        HAS_NORMED_INDEX=normed_index is not None,
        WRITES_BRANCH=len(grad_branch) > 0,
        ROWS=rows,
        DIM=next_power_of_2(dim),
        STAGES=tiles.stages,
        num_warps=tiles.warps,
    )
    return grad_residual, sum_partials(partial)
