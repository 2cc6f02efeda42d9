"""Residual sum, stochastic depth by whole samples and LayerNorm as one operation."""

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int32
from torch import Tensor

from t2t.ops.attention_tiles import next_power_of_2
from t2t.ops.availability import runs_kernels
from t2t.shapes import Tokens

Slots = Int32[Tensor, "batch"]
Vector = Float[Tensor, "dim"]


def kept_counts(batch: int, drop_rates: Sequence[float]) -> list[int]:
    """How many samples of a batch each branch is computed for.

    Integers near (1 − rate) · batch. The rounding error of one branch is carried to the
    next, so that all branches together drop the sum of their rates.
    """
    wanted = [batch * total for total in accumulate(drop_rates)]
    dropped = [math.floor(total + 0.5) for total in wanted]
    return [max(1, batch - now + before) for before, now in pairwise([0, *dropped])]


def draw_slots(
    batch: int, counts: list[int], device: torch.device
) -> Int32[Tensor, "branches batch"]:
    """For each branch, every sample's place among so many kept ones, or -1: dropped."""
    rank = torch.rand(len(counts), batch, device=device).argsort(1).argsort(1)
    # Filled one by one: a constant list would be copied to the device at every step.
    limit = torch.stack([rank.new_full((), count) for count in counts])[:, None]
    return torch.where(rank < limit, rank, -1).to(torch.int32)


def kept_samples(tokens: Tokens, slots: Slots, count: int) -> Tokens:
    """The kept samples of a batch, in the order of their slots."""
    # Dropped samples all write to one place too many, which is cut off.
    place = torch.where(slots >= 0, slots, count).long()
    sample = torch.arange(len(place), device=place.device)
    order = place.new_zeros(count + 1).scatter(0, place, sample)
    return tokens[order[:count]]


def residual_norm_reference(
    residual: Tokens,
    branch: Tokens,
    branch_bias: Vector,
    gain: Vector,
    shift: Vector,
    branch_slots: Slots | None,
    normed_slots: Slots | None,
    num_normed: int,
    scale: float,
    eps: float,
) -> tuple[Tokens, Tokens]:
    """residual + scale·(branch + bias) and its LayerNorm, for the kept samples alone.

    The branch holds the samples kept for it, in the order of `branch_slots`; the normed
    tokens are those of the samples kept for the next branch, by `normed_slots`.
    """
    update = (branch + branch_bias) * scale
    if branch_slots is not None:
        kept = (branch_slots >= 0)[:, None, None]
        update = torch.where(kept, update[branch_slots.clamp(min=0)], 0)
    total = residual + update.to(residual.dtype)
    normed = F.layer_norm(total, total.shape[-1:], gain, shift, eps)
    if normed_slots is not None:
        normed = kept_samples(normed, normed_slots, num_normed)
    return total, normed.to(branch.dtype)


def residual_norm(
    residual: Tokens,
    branch: Tokens,
    branch_bias: Vector,
    gain: Vector,
    shift: Vector,
    branch_slots: Slots | None,
    normed_slots: Slots | None,
    num_normed: int,
    scale: float,
    eps: float,
) -> tuple[Tokens, Tokens]:
    """The same in one pass over memory each way."""
    arguments = (residual, branch, branch_bias, gain, shift)
    rng = (branch_slots, normed_slots, num_normed, scale, eps)
    if has_kernel(residual, branch.dtype):
        from t2t.ops.operators import fused_residual_norm

        return fused_residual_norm(*arguments, *rng)
    return residual_norm_reference(*arguments, *rng)


def norm_reference(
    tokens: Tokens,
    gain: Vector,
    shift: Vector,
    slots: Slots | None,
    num_normed: int,
    eps: float,
    dtype: torch.dtype,
) -> Tokens:
    """LayerNorm of the kept samples in `dtype`, computed in float32 or better."""
    wide = torch.promote_types(tokens.dtype, torch.float32)
    normed = F.layer_norm(
        tokens.to(wide), tokens.shape[-1:], gain.to(wide), shift.to(wide), eps
    ).to(dtype)
    return normed if slots is None else kept_samples(normed, slots, num_normed)


def norm(
    tokens: Tokens,
    gain: Vector,
    shift: Vector,
    slots: Slots | None,
    num_normed: int,
    eps: float,
    dtype: torch.dtype,
) -> Tokens:
    """The same in one pass over memory each way."""
    arguments = (tokens, gain, shift, slots, num_normed, eps, dtype)
    if has_kernel(tokens, dtype):
        from t2t.ops.operators import fused_norm

        normed: Tokens = fused_norm(*arguments)
        return normed
    return norm_reference(*arguments)


def has_kernel(residual: Tokens, dtype: torch.dtype) -> bool:
    """Whether there is a kernel for these tokens and branches of this dtype."""
    return runs_kernels(residual, dtype) and residual.shape[-1] <= 1024


def fused_forward(
    residual: Tensor,
    branch: Tensor,
    branch_bias: Tensor,
    gain: Tensor,
    shift: Tensor,
    branch_slots: Tensor | None,
    normed_slots: Tensor | None,
    num_normed: int,
    scale: float,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """The sum and the normed tokens."""
    residual, branch = residual.contiguous(), branch.contiguous()
    total = torch.empty_like(residual)
    normed = branch.new_empty(num_normed, *residual.shape[1:])
    tensors = (residual, branch, branch_bias, branch_slots, normed_slots, gain, shift)
    launch_forward(tensors, total, normed, scale, eps)
    return total, normed


def norm_forward(
    tokens: Tensor,
    gain: Tensor,
    shift: Tensor,
    slots: Tensor | None,
    num_normed: int,
    eps: float,
    dtype: torch.dtype,
) -> Tensor:
    """The normed tokens of the kept samples."""
    tokens = tokens.contiguous()
    normed = tokens.new_empty(num_normed, *tokens.shape[1:], dtype=dtype)
    tensors = (tokens, None, None, None, slots, gain, shift)
    launch_forward(tensors, None, normed, 1.0, eps)
    return normed


def launch_forward(
    tensors: tuple[Tensor | None, ...],
    total: Tensor | None,
    normed: Tensor,
    scale: float,
    eps: float,
) -> None:
    """Residual, branch, bias, both slots, gain and shift; without a branch, no sum."""
    from t2t.ops.kernels.launch import launch
    from t2t.ops.kernels.residual_norm import residual_norm_forward

    residual, branch, bias, branch_slots, normed_slots, gain, shift = tensors
    assert residual is not None
    batch, tokens, dim = residual.shape
    rows = batch * tokens
    tile = 4
    launch(residual_norm_forward)[((rows + tile - 1) // tile,)](
        residual,
        branch if branch is not None else residual,
        bias if bias is not None else gain,
        branch_slots if branch_slots is not None else gain,
        normed_slots if normed_slots is not None else gain,
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
        HAS_BRANCH_SLOTS=branch_slots is not None,
        HAS_NORMED_SLOTS=normed_slots is not None,
        ROWS=tile,
        DIM=next_power_of_2(dim),
        num_warps=2,
    )


def shares_gradient(
    total: Tensor, grad_normed: Tensor, branch_slots: Tensor | None, scale: float
) -> bool:
    """Whether the branch's gradient is the residual's: nothing dropped or scaled."""
    return branch_slots is None and scale == 1 and total.dtype == grad_normed.dtype


def fused_backward(
    total: Tensor,
    grad_total: Tensor,
    grad_normed: Tensor,
    gain: Tensor,
    branch_slots: Tensor | None,
    normed_slots: Tensor | None,
    num_branch: int,
    scale: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the residual, the branch, and gain, shift and bias stacked.

    That of the branch is empty where it is the residual's own.
    """
    shares = shares_gradient(total, grad_normed, branch_slots, scale)
    kept = 0 if shares else num_branch
    grad_branch = grad_normed.new_empty(kept, *total.shape[1:])
    grads = (grad_total.contiguous(), grad_normed.contiguous(), grad_branch)
    slots = (branch_slots, normed_slots)
    grad_residual, vectors = launch_backward(total, grads, gain, slots, scale, eps)
    return grad_residual, grad_branch, vectors


def norm_backward(
    tokens: Tensor, grad_normed: Tensor, gain: Tensor, slots: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    """Gradients of the tokens, and of gain and shift stacked above a third."""
    grads = (None, grad_normed.contiguous(), grad_normed.new_empty(0))
    return launch_backward(tokens.contiguous(), grads, gain, (None, slots), 1.0, eps)


def launch_backward(
    total: Tensor,
    grads: tuple[Tensor | None, Tensor, Tensor],
    gain: Tensor,
    slots: tuple[Tensor | None, Tensor | None],
    scale: float,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """From the gradients of sum and norm; that of the branch is filled, unless empty.

    Gives the gradient of the residual, and those of gain, shift and bias stacked.
    """
    from t2t.ops.kernels.launch import launch
    from t2t.ops.kernels.residual_norm import residual_norm_backward

    grad_total, grad_normed, grad_branch = grads
    branch_slots, normed_slots = slots
    batch, tokens, dim = total.shape
    grad_residual = torch.empty_like(total)
    tile = 1
    parts = max(1, min(-(-tokens // tile), -(-4096 // batch)))
    partial = total.new_empty(batch * parts, 3, dim, dtype=torch.float32)
    launch(residual_norm_backward)[(batch, parts)](
        total,
        grad_total if grad_total is not None else total,
        grad_normed,
        branch_slots if branch_slots is not None else gain,
        normed_slots if normed_slots is not None else gain,
        gain,
        grad_residual,
        grad_branch if len(grad_branch) else grad_residual,
        partial,
        tokens,
        dim,
        scale,
        EPS=eps,
        HAS_GRAD_SUM=grad_total is not None,
        HAS_BRANCH_SLOTS=branch_slots is not None,
        HAS_NORMED_SLOTS=normed_slots is not None,
        WRITES_BRANCH=len(grad_branch) > 0,
        ROWS=tile,
        DIM=next_power_of_2(dim),
        STAGES=3,
        num_warps=1,
    )
    return grad_residual, partial.sum(0)
