"""The last step of a sum that many programs have begun."""

# mypy: ignore-errors
# Triton functions have no Python types.

import triton
import triton.language as tl


@triton.jit
def sum_partials(
    partial_ptr,
    out_ptr,
    rows,
    columns,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """One program: the sums of COLUMNS columns, always in the same order."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    column_mask = column < columns
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, rows, ROWS):
        row = start + tl.arange(0, ROWS)
        total += tl.load(
            partial_ptr + row.to(tl.int64)[:, None] * columns + column[None, :],
            mask=(row < rows)[:, None] & column_mask[None, :],
            other=0.0,
        )
    tl.store(out_ptr + column, tl.sum(total, 0), mask=column_mask)
