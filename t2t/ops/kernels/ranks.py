"""Each value's rank within its row."""

# mypy: ignore-errors
# Triton functions have no Python types.

import triton
import triton.language as tl


@triton.jit
def rank_values(
    values_ptr,
    ranks_ptr,
    columns,
    BLOCK: tl.constexpr,
    OTHERS: tl.constexpr,
):
    """One program: the ranks of some values of a row."""
    first = tl.program_id(0).to(tl.int64) * columns
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    own = tl.load(values_ptr + first + column, mask=column < columns, other=0.0)
    rank = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, columns, OTHERS):
        place = start + tl.arange(0, OTHERS)
        other = tl.load(values_ptr + first + place, mask=place < columns, other=0.0)
        is_before = (other[None, :] == own[:, None]) & (
            place[None, :] < column[:, None]
        )
        is_smaller = (other[None, :] < own[:, None]) | is_before
        is_smaller &= (place < columns)[None, :]
        rank += tl.sum(is_smaller.to(tl.int32), 1)
    tl.store(ranks_ptr + first + column, rank.to(tl.int64), mask=column < columns)
