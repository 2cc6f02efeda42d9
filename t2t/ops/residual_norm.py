"""Residual sum, stochastic depth by whole samples and LayerNorm as one operation."""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int32
from torch import Tensor

from t2t.ops.attention_tiles import next_power_of_2
from t2t.ops.availability import HAS_TRITON
from t2t.shapes import Tokens

Slots = Int32[Tensor, "batch"]
Vector = Float[Tensor, "dim"]


def num_kept(batch: int, drop_rate: float) -> int:
    """How many samples of a batch a branch is computed for."""
    return max(1, batch - round(batch * drop_rate))


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
    draws = (branch_slots, normed_slots, num_normed, scale, eps)
    if has_kernel(residual, branch):
        from t2t.ops.operators import fused_residual_norm

        return fused_residual_norm(*arguments, *draws)
    return residual_norm_reference(*arguments, *draws)


def has_kernel(residual: Tokens, branch: Tokens) -> bool:
    """Whether the fast path takes these tokens."""
    return (
        HAS_TRITON
        and residual.is_cuda
        and branch.dtype in (torch.bfloat16, torch.float16)
        and residual.shape[-1] <= 1024
    )


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
    from t2t.ops.kernels.launch import launch
    from t2t.ops.kernels.residual_norm import residual_norm_forward

    residual, branch = residual.contiguous(), branch.contiguous()
    batch, tokens, dim = residual.shape
    total = torch.empty_like(residual)
    normed = branch.new_empty(num_normed, tokens, dim)
    rows = batch * tokens
    tile = 4
    launch(residual_norm_forward)[((rows + tile - 1) // tile,)](
        residual,
        branch,
        branch_bias,
        branch_slots if branch_slots is not None else gain,
        normed_slots if normed_slots is not None else gain,
        gain,
        shift,
        total,
        normed,
        rows,
        tokens,
        dim,
        scale,
        EPS=eps,
        HAS_BRANCH_SLOTS=branch_slots is not None,
        HAS_NORMED_SLOTS=normed_slots is not None,
        ROWS=tile,
        DIM=next_power_of_2(dim),
        num_warps=2,
    )
    return total, normed


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
    """Gradients of the residual, the branch, and gain, shift and bias stacked."""
    from t2t.ops.kernels.launch import launch
    from t2t.ops.kernels.residual_norm import residual_norm_backward

    grad_total, grad_normed = grad_total.contiguous(), grad_normed.contiguous()
    batch, tokens, dim = total.shape
    grad_residual = torch.empty_like(total)
    grad_branch = grad_normed.new_empty(num_branch, tokens, dim)
    tile = 1
    parts = max(1, min(-(-tokens // tile), -(-4096 // batch)))
    partial = total.new_empty(batch * parts, 3, dim, dtype=torch.float32)
    launch(residual_norm_backward)[(batch, parts)](
        total,
        grad_total,
        grad_normed,
        branch_slots if branch_slots is not None else gain,
        normed_slots if normed_slots is not None else gain,
        gain,
        grad_residual,
        grad_branch,
        partial,
        tokens,
        dim,
        scale,
        EPS=eps,
        HAS_BRANCH_SLOTS=branch_slots is not None,
        HAS_NORMED_SLOTS=normed_slots is not None,
        ROWS=tile,
        DIM=next_power_of_2(dim),
        STAGES=3,
        num_warps=1,
    )
    return grad_residual, grad_branch, partial.sum(0)
