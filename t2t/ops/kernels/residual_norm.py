"""Residual sum, drop path and LayerNorm: one kernel forward, one backward."""

# mypy: ignore-errors
# Triton functions have no Python types.

import triton
import triton.language as tl


@triton.jit
def residual_norm_forward(
    residual_ptr,
    branch_ptr,
    branch_bias_ptr,
    branch_index_ptr,
    normed_index_ptr,
    gain_ptr,
    shift_ptr,
    sum_ptr,
    normed_ptr,
    rows,
    tokens,
    dim,
    scale,
    EPS: tl.constexpr,
    HAS_BRANCH: tl.constexpr,
    HAS_BRANCH_INDEX: tl.constexpr,
    HAS_NORMED_INDEX: tl.constexpr,
    ROWS: tl.constexpr,
    DIM: tl.constexpr,
):
    """One program: ROWS tokens, of one or several samples."""
    scale = tl.cast(scale, tl.float32)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, DIM)
    row_mask = row < rows
    column_mask = column < dim
    mask = row_mask[:, None] & column_mask[None, :]
    sample = row // tokens
    token = row - sample * tokens
    at = row.to(tl.int64)[:, None] * dim + column[None, :]
    x = tl.load(residual_ptr + at, mask=mask, other=0.0).to(tl.float32)
    if HAS_BRANCH:
        index = sample
        if HAS_BRANCH_INDEX:
            index = tl.load(branch_index_ptr + sample, mask=row_mask, other=-1)
        kept = (index >= 0) & row_mask
        branch_row = index.to(tl.int64) * tokens + token
        branch = tl.load(
            branch_ptr + branch_row[:, None] * dim + column[None, :],
            mask=kept[:, None] & column_mask[None, :],
            other=0.0,
        ).to(tl.float32)
        bias = tl.load(branch_bias_ptr + column, mask=column_mask, other=0.0)
        branch += bias.to(tl.float32)[None, :]
        x += tl.where(kept[:, None], branch * scale, 0.0)
        stored = x.to(sum_ptr.dtype.element_ty)
        tl.store(sum_ptr + at, stored, mask=mask)
        # The backward pass sees the rounded sum: normalise the same numbers here.
        x = stored.to(tl.float32)
    mean = tl.sum(x, 1) / dim
    centred = tl.where(column_mask[None, :], x - mean[:, None], 0.0)
    rstd = tl.rsqrt(tl.sum(centred * centred, 1) / dim + EPS)
    gain = tl.load(gain_ptr + column, mask=column_mask, other=0.0).to(tl.float32)
    shift = tl.load(shift_ptr + column, mask=column_mask, other=0.0).to(tl.float32)
    normed = centred * rstd[:, None] * gain[None, :] + shift[None, :]
    index = sample
    if HAS_NORMED_INDEX:
        index = tl.load(normed_index_ptr + sample, mask=row_mask, other=-1)
    kept = (index >= 0) & row_mask
    normed_row = index.to(tl.int64) * tokens + token
    tl.store(
        normed_ptr + normed_row[:, None] * dim + column[None, :],
        normed.to(normed_ptr.dtype.element_ty),
        mask=kept[:, None] & column_mask[None, :],
    )


@triton.jit
def residual_norm_backward(
    sum_ptr,
    grad_sum_ptr,
    grad_normed_ptr,
    branch_index_ptr,
    normed_index_ptr,
    gain_ptr,
    grad_residual_ptr,
    grad_branch_ptr,
    partial_ptr,
    tokens,
    dim,
    scale,
    EPS: tl.constexpr,
    HAS_GRAD_SUM: tl.constexpr,
    HAS_BRANCH_INDEX: tl.constexpr,
    HAS_NORMED_INDEX: tl.constexpr,
    WRITES_BRANCH: tl.constexpr,
    ROWS: tl.constexpr,
    DIM: tl.constexpr,
    STAGES: tl.constexpr,
):
    """One program: some tokens of one sample, and sums of the parameters' gradients."""
    scale = tl.cast(scale, tl.float32)
    sample = tl.program_id(0)
    branch_index = sample
    if HAS_BRANCH_INDEX:
        branch_index = tl.load(branch_index_ptr + sample)
    normed_index = sample
    if HAS_NORMED_INDEX:
        normed_index = tl.load(normed_index_ptr + sample)
    # A dropped sample has no rows to read or write.
    num_branch = tl.where(branch_index >= 0, tokens, 0)
    num_normed = tl.where(normed_index >= 0, tokens, 0)
    size = tl.cast(tokens, tl.int64) * dim
    sum_ptr += sample * size
    grad_sum_ptr += sample * size
    grad_residual_ptr += sample * size
    grad_normed_ptr += normed_index * size
    grad_branch_ptr += branch_index * size
    column = tl.arange(0, DIM)
    column_mask = column < dim
    gain = tl.load(gain_ptr + column, mask=column_mask, other=0.0).to(tl.float32)
    grad_gain = tl.zeros((ROWS, DIM), tl.float32)
    grad_shift = tl.zeros((ROWS, DIM), tl.float32)
    grad_bias = tl.zeros((ROWS, DIM), tl.float32)
    step = tl.num_programs(1) * ROWS
    for start in tl.range(tl.program_id(1) * ROWS, tokens, step, num_stages=STAGES):
        row = start + tl.arange(0, ROWS)
        mask = (row < tokens)[:, None] & column_mask[None, :]
        at = row[:, None] * dim + column[None, :]
        kept = (row < num_normed)[:, None] & column_mask[None, :]
        grad = tl.load(grad_normed_ptr + at, mask=kept, other=0.0).to(tl.float32)
        x = tl.load(sum_ptr + at, mask=mask, other=0.0).to(tl.float32)
        total = tl.zeros((ROWS, DIM), tl.float32)
        if HAS_GRAD_SUM:
            total = tl.load(grad_sum_ptr + at, mask=mask, other=0.0).to(tl.float32)
        mean = tl.sum(x, 1) / dim
        centred = tl.where(column_mask[None, :], x - mean[:, None], 0.0)
        rstd = tl.rsqrt(tl.sum(centred * centred, 1) / dim + EPS)
        unit = centred * rstd[:, None]
        grad_gain += grad * unit
        grad_shift += grad
        grad *= gain[None, :]
        along = tl.sum(grad * unit, 1) / dim
        level = tl.sum(grad, 1) / dim
        total += (grad - level[:, None] - unit * along[:, None]) * rstd[:, None]
        dtype = grad_residual_ptr.dtype.element_ty
        tl.store(grad_residual_ptr + at, total.to(dtype), mask=mask)
        kept = (row < num_branch)[:, None] & column_mask[None, :]
        total = tl.where(kept, total * scale, 0.0)
        grad_bias += total
        if WRITES_BRANCH:
            dtype = grad_branch_ptr.dtype.element_ty
            tl.store(grad_branch_ptr + at, total.to(dtype), mask=kept)
    part = sample * tl.num_programs(1) + tl.program_id(1)
    partial_at = partial_ptr + part * 3 * dim + column
    tl.store(partial_at, tl.sum(grad_gain, 0), mask=column_mask)
    tl.store(partial_at + dim, tl.sum(grad_shift, 0), mask=column_mask)
    tl.store(partial_at + 2 * dim, tl.sum(grad_bias, 0), mask=column_mask)
