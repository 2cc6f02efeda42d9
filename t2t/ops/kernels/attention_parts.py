"""Functions that the attention kernels share: loads and stores of tiles, products.

The sides of tiles are powers of two, which the number of tokens rarely is. Loops over
tiles end with a narrower tile for the last tokens, and only that one is masked: 197
tokens are 3 × 64 + 16. The number of tokens is a compile-time constant.
"""

# mypy: ignore-errors
# Triton functions have no Python types.

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def head_offsets(which, TOKENS: tl.constexpr, HEADS: tl.constexpr, HEAD: tl.constexpr):
    """Offsets of a head of a sample: in packed q, k, v; in the output; in log-sums."""
    # Offsets, not pointers: torch.compile finds out which tensors a kernel writes to by
    # tracing pointers, and cannot trace those that a function returns.
    sample = (which // HEADS).to(tl.int64)
    head = which % HEADS * HEAD
    unpacked = sample * (TOKENS * HEADS * HEAD)
    return 3 * unpacked + head, unpacked + head, which * TOKENS


@triton.jit
def load_rows(
    pointer,
    first,
    stride,
    ROWS: tl.constexpr,
    HEAD: tl.constexpr,
    TOKENS: tl.constexpr,
    MASKED: tl.constexpr,
):
    """ROWS tokens of one head, zero past the last token."""
    row = first + tl.arange(0, ROWS)
    at = row[:, None] * stride + tl.arange(0, HEAD)[None, :]
    if MASKED:
        rows = tl.load(pointer + at, mask=(row < TOKENS)[:, None], other=0.0)
    else:
        rows = tl.load(pointer + at)
    return rows


@triton.jit
def store_rows(
    pointer,
    rows,
    first,
    stride,
    TOKENS: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Stores rows, except those past the last token."""
    row = first + tl.arange(0, rows.shape[0])
    at = row[:, None] * stride + tl.arange(0, rows.shape[1])[None, :]
    rows = rows.to(pointer.dtype.element_ty)
    if MASKED:
        tl.store(pointer + at, rows, mask=(row < TOKENS)[:, None])
    else:
        tl.store(pointer + at, rows)


@triton.jit
def load_numbers(
    pointer, first, ROWS: tl.constexpr, TOKENS: tl.constexpr, MASKED: tl.constexpr
):
    """One number for each of ROWS tokens, zero past the last."""
    row = first + tl.arange(0, ROWS)
    if MASKED:
        numbers = tl.load(pointer + row, mask=row < TOKENS, other=0.0)
    else:
        numbers = tl.load(pointer + row)
    return numbers


@triton.jit
def store_numbers(pointer, numbers, first, TOKENS: tl.constexpr, MASKED: tl.constexpr):
    """Stores one number per token, except past the last."""
    row = first + tl.arange(0, numbers.shape[0])
    if MASKED:
        tl.store(pointer + row, numbers, mask=row < TOKENS)
    else:
        tl.store(pointer + row, numbers)


@triton.jit
def exact_dot(left, right):
    """A matrix product whose float32 operands, used only by tests, are not rounded."""
    return tl.dot(left, right, input_precision="ieee")
