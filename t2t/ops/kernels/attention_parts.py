"""What the kernels of attention share: tiles of rows in and out, and products.

Tokens rarely fill tiles whose sides are powers of two. Where something repeats over
tiles, the last few tokens come in a narrow tile of their own, and only it is masked:
197 tokens as 3 × 64 + 16. The number of tokens is known when a kernel is compiled, so
that none of this is decided while it runs.
"""

# mypy: ignore-errors
# Triton's functions are a language of their own, without Python's types.

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def head_offsets(which, TOKENS: tl.constexpr, HEADS: tl.constexpr, HEAD: tl.constexpr):
    """Where one head of one sample begins: packed, alone, and as numbers by token."""
    # Offsets, not pointers: torch.compile can tell what a kernel writes only while it
    # sees where pointers come from, and does not see into what a function returns.
    sample = (which // HEADS).to(tl.int64)
    head = which % HEADS * HEAD
    alone = sample * (TOKENS * HEADS * HEAD)
    return 3 * alone + head, alone + head, which * TOKENS


@triton.jit
def rows_of(
    pointer,
    first,
    stride,
    ROWS: tl.constexpr,
    HEAD: tl.constexpr,
    TOKENS: tl.constexpr,
    MASKED: tl.constexpr,
):
    """ROWS tokens' share of one head, zero past the last token."""
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
    """The opposite: leaves out what lies past the last token."""
    row = first + tl.arange(0, rows.shape[0])
    at = row[:, None] * stride + tl.arange(0, rows.shape[1])[None, :]
    rows = rows.to(pointer.dtype.element_ty)
    if MASKED:
        tl.store(pointer + at, rows, mask=(row < TOKENS)[:, None])
    else:
        tl.store(pointer + at, rows)


@triton.jit
def numbers_of(
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
    """The opposite: leaves out those past the last token."""
    row = first + tl.arange(0, numbers.shape[0])
    if MASKED:
        tl.store(pointer + row, numbers, mask=row < TOKENS)
    else:
        tl.store(pointer + row, numbers)


@triton.jit
def product_of(left, right):
    """A matrix product whose float32 operands, used only by tests, are not rounded."""
    return tl.dot(left, right, input_precision="ieee")
