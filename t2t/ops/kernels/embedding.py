"""Prefix tokens, bias and positions, added by one kernel forward and one backward."""

# mypy: ignore-errors
# Triton functions have no Python types.

import triton
import triton.language as tl


@triton.jit
def embed_forward(
    features_ptr,
    bias_ptr,
    prefix_ptr,
    table_ptr,
    rank_ptr,
    out_ptr,
    batch,
    tokens,
    count,
    dim,
    PREFIX: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_TABLE: tl.constexpr,
    HAS_RANK: tl.constexpr,
    ROWS: tl.constexpr,
    DIM: tl.constexpr,
):
    """One program: the same tokens of some samples."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, DIM)
    column_mask = (column < dim)[None, :]
    mask = (row < PREFIX + tokens)[:, None] & column_mask
    is_image = row >= PREFIX
    added = tl.zeros((ROWS, DIM), tl.float32)
    at = row[:, None] * dim + column[None, :]
    if HAS_TABLE:
        added += tl.load(table_ptr + at, mask=mask, other=0.0).to(tl.float32)
    if PREFIX > 0:
        here = mask & (row < PREFIX)[:, None]
        added += tl.load(prefix_ptr + at, mask=here, other=0.0).to(tl.float32)
    if HAS_BIAS:
        bias = tl.load(bias_ptr + column, mask=column < dim, other=0.0)
        added += tl.where(is_image[:, None], bias.to(tl.float32)[None, :], 0.0)
    for sample in range(tl.program_id(1), batch, tl.num_programs(1)):
        before = tl.cast(sample, tl.int64)
        out_row = row
        kept = row < PREFIX + tokens
        if HAS_RANK:
            rank_at = rank_ptr + before * tokens + row - PREFIX
            rank = tl.load(rank_at, mask=kept & is_image, other=0).to(tl.int32)
            kept &= ~is_image | (rank < count)
            out_row = tl.where(is_image, PREFIX + rank, row)
        kept_mask = kept[:, None] & column_mask
        feature_at = features_ptr + before * tokens * dim + at - PREFIX * dim
        x = tl.load(feature_at, mask=kept_mask & is_image[:, None], other=0.0)
        tl.store(
            out_ptr
            + before * (PREFIX + count) * dim
            + out_row[:, None] * dim
            + column[None, :],
            (x.to(tl.float32) + added).to(out_ptr.dtype.element_ty),
            mask=kept_mask,
        )


@triton.jit
def embed_backward(
    grad_ptr,
    rank_ptr,
    grad_features_ptr,
    partial_ptr,
    batch,
    tokens,
    count,
    dim,
    PREFIX: tl.constexpr,
    HAS_RANK: tl.constexpr,
    ROWS: tl.constexpr,
    DIM: tl.constexpr,
):
    """One program: the gradients of the same tokens, and their sum over some samples.

    Features that were dropped get zeros.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, DIM)
    column_mask = (column < dim)[None, :]
    is_image = row >= PREFIX
    at = row[:, None] * dim + column[None, :]
    mask = (row < PREFIX + tokens)[:, None] & column_mask
    total = tl.zeros((ROWS, DIM), tl.float32)
    for sample in range(tl.program_id(1), batch, tl.num_programs(1)):
        before = tl.cast(sample, tl.int64)
        grad_row = row
        kept = row < PREFIX + tokens
        if HAS_RANK:
            rank_at = rank_ptr + before * tokens + row - PREFIX
            rank = tl.load(rank_at, mask=kept & is_image, other=0).to(tl.int32)
            kept &= ~is_image | (rank < count)
            grad_row = tl.where(is_image, PREFIX + rank, row)
        grad = tl.load(
            grad_ptr
            + before * (PREFIX + count) * dim
            + grad_row[:, None] * dim
            + column[None, :],
            mask=kept[:, None] & column_mask,
            other=0.0,
        ).to(tl.float32)
        tl.store(
            grad_features_ptr + before * tokens * dim + at - PREFIX * dim,
            grad.to(grad_features_ptr.dtype.element_ty),
            mask=mask & is_image[:, None],
        )
        total += grad
    base = partial_ptr + tl.program_id(1) * (PREFIX + tokens) * dim
    tl.store(base + at, total, mask=mask)
