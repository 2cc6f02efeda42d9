"""GELU with one exponential: Φ(x) as the sigmoid of an odd polynomial."""

# mypy: ignore-errors
# Triton functions have no Python types.

import triton
import triton.language as tl


@triton.jit
def normal_cdf(x):
    """Φ(x); the error of x·Φ(x) is at most 2.6e-5."""
    # Beyond √60 the sigmoid is 0 or 1, and the polynomial would change its sign.
    square = tl.minimum(x * x, 60.0)
    # Coefficients times −log₂e, to go with exp2.
    polynomial = 0.0010142655 * square - 0.10677574
    polynomial = polynomial * square - 2.3011213
    return 1.0 / (1.0 + tl.exp2(x * polynomial))


@triton.jit
def normal_density(x):
    """φ(x)."""
    return 0.3989422804014327 * tl.exp2(-0.7213475204444817 * x * x)


@triton.jit
def gelu(x):
    """x·Φ(x)."""
    return x * normal_cdf(x)


@triton.jit
def gelu_forward(x_ptr, out_ptr, size, BLOCK: tl.constexpr):
    """GELU of BLOCK consecutive values."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = at < size
    x = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + at, gelu(x).to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def gelu_backward(
    x_ptr,
    grad_out_ptr,
    grad_ptr,
    partial_ptr,
    rows,
    columns,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """The gradient of the input, and its sums over some rows for the bias."""
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    column_mask = column < columns
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    step = tl.num_programs(0) * ROWS
    for start in tl.range(tl.program_id(0) * ROWS, rows, step, num_stages=STAGES):
        row = start + tl.arange(0, ROWS)
        mask = (row < rows)[:, None] & column_mask[None, :]
        at = row.to(tl.int64)[:, None] * columns + column[None, :]
        x = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
        grad = tl.load(grad_out_ptr + at, mask=mask, other=0.0).to(tl.float32)
        grad *= normal_cdf(x) + x * normal_density(x)
        tl.store(grad_ptr + at, grad.to(grad_ptr.dtype.element_ty), mask=mask)
        total += grad
    at = partial_ptr + tl.program_id(0) * columns + column
    tl.store(at, tl.sum(total, 0), mask=column_mask)
