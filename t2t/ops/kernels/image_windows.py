"""An image as squares of pixels or as windows, and the windows' mean and deviation."""

# mypy: ignore-errors
# Triton functions have no Python types.

import triton
import triton.language as tl


@triton.jit
def image_squares(
    image_ptr,
    squares_ptr,
    sums_ptr,
    sample_stride,
    channel_stride,
    row_stride,
    column_stride,
    height,
    width,
    rows,
    columns,
    CHANNELS: tl.constexpr,
    OUT_CHANNELS: tl.constexpr,
    STRIDE: tl.constexpr,
    PADDING: tl.constexpr,
    REST: tl.constexpr,
    LINES: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """One program: some squares of a row, and the sums of their values and squares.

    A window ends with the first REST rows and columns of its last squares: sums over
    those are stored, too.
    """
    DTYPE: tl.constexpr = squares_ptr.dtype.element_ty
    NUM_SUMS: tl.constexpr = 2 if REST == STRIDE else 8
    row = tl.program_id(0) % rows
    sample = (tl.program_id(0) // rows).to(tl.int64)
    first = tl.program_id(1) * COLUMNS
    # A line is one row of pixels of one channel within the row of squares.
    line = tl.arange(0, LINES)
    y = row * STRIDE + line % STRIDE - PADDING
    x = first * STRIDE + tl.arange(0, COLUMNS * STRIDE) - PADDING
    line_mask = (line < CHANNELS * STRIDE) & (y >= 0) & (y < height)
    at = (line // STRIDE) * channel_stride + y * row_stride
    pixels = tl.load(
        image_ptr
        + sample * sample_stride
        + at[:, None].to(tl.int64)
        + x[None, :] * column_stride,
        mask=line_mask[:, None] & ((x >= 0) & (x < width))[None, :],
        other=0.0,
    ).to(tl.float32)
    column = first + tl.arange(0, COLUMNS)
    mask = column < columns
    squares = tl.reshape(pixels.to(DTYPE), (LINES, COLUMNS, STRIDE))
    squares = tl.reshape(tl.permute(squares, (1, 0, 2)), (COLUMNS, LINES * STRIDE))
    channel = tl.arange(0, LINES * STRIDE)
    square = (sample * rows + row) * columns + column
    tl.store(
        squares_ptr + square[:, None] * OUT_CHANNELS + channel[None, :],
        squares,
        mask=mask[:, None] & (channel < OUT_CHANNELS)[None, :],
    )
    size = rows * columns
    sums_ptr += sample * NUM_SUMS * size + row * columns + column
    within = tl.arange(0, STRIDE) < REST
    for power in tl.static_range(2):
        values = pixels if power == 0 else pixels * pixels
        whole = tl.reshape(tl.sum(values, 0), (COLUMNS, STRIDE))
        tl.store(sums_ptr, tl.sum(whole, 1), mask=mask)
        if REST < STRIDE:
            part = tl.where((line % STRIDE < REST)[:, None], values, 0.0)
            part = tl.reshape(tl.sum(part, 0), (COLUMNS, STRIDE))
            left = tl.sum(tl.where(within[None, :], whole, 0.0), 1)
            corner = tl.sum(tl.where(within[None, :], part, 0.0), 1)
            tl.store(sums_ptr + size, left, mask=mask)
            tl.store(sums_ptr + 2 * size, tl.sum(part, 1), mask=mask)
            tl.store(sums_ptr + 3 * size, corner, mask=mask)
        sums_ptr += NUM_SUMS // 2 * size


@triton.jit
def window_moments(
    sums_ptr,
    mean_ptr,
    rstd_ptr,
    total,
    rows,
    columns,
    grid_columns,
    tokens,
    SQUARES: tl.constexpr,
    HAS_REST: tl.constexpr,
    SIZE: tl.constexpr,
    EPS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Mean and 1/deviation of windows of SQUARES × SQUARES squares."""
    NUM_SUMS: tl.constexpr = 8 if HAS_REST else 2
    window = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = window < total
    sample = window // tokens
    row = window % tokens // grid_columns
    column = window % grid_columns
    size = rows * columns
    at = sums_ptr + sample.to(tl.int64) * NUM_SUMS * size + row * columns + column
    first = tl.zeros((BLOCK,), tl.float32)
    second = tl.zeros((BLOCK,), tl.float32)
    for down in tl.static_range(SQUARES):
        for right in tl.static_range(SQUARES):
            kind = 0
            if HAS_REST:
                kind = 2 * (down == SQUARES - 1) + (right == SQUARES - 1)
            here = at + kind * size + down * columns + right
            first += tl.load(here, mask=mask, other=0.0)
            second += tl.load(here + NUM_SUMS // 2 * size, mask=mask, other=0.0)
    mean = first / SIZE
    # Rounding can make the variance of a flat window slightly negative.
    variance = tl.maximum(second / SIZE - mean * mean, 0.0)
    tl.store(mean_ptr + window, mean, mask=mask)
    tl.store(rstd_ptr + window, tl.rsqrt(variance + EPS), mask=mask)


@triton.jit
def gather_windows(
    image_ptr,
    windows_ptr,
    mean_ptr,
    rstd_ptr,
    sample_stride,
    channel_stride,
    row_stride,
    column_stride,
    height,
    width,
    grid_rows,
    grid_columns,
    total,
    KERNEL: tl.constexpr,
    STRIDE: tl.constexpr,
    PADDING: tl.constexpr,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    EPS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program: the values of some windows, each with zeros up to WIDTH."""
    window = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    column = window % grid_columns
    row = window // grid_columns % grid_rows
    sample = (window // grid_columns // grid_rows).to(tl.int64)
    value = tl.arange(0, WIDTH)
    channel = value // (KERNEL * KERNEL)
    y = (row * STRIDE - PADDING)[:, None] + (value // KERNEL % KERNEL)[None, :]
    x = (column * STRIDE - PADDING)[:, None] + (value % KERNEL)[None, :]
    is_value = (value < SIZE)[None, :] & (window < total)[:, None]
    within = is_value & (y >= 0) & (y < height) & (x >= 0) & (x < width)
    pixels = tl.load(
        image_ptr
        + (sample * sample_stride)[:, None]
        + (channel * channel_stride)[None, :]
        + y * row_stride
        + x * column_stride,
        mask=within,
        other=0.0,
    ).to(tl.float32)
    tl.store(
        windows_ptr + window.to(tl.int64)[:, None] * WIDTH + value[None, :],
        pixels.to(windows_ptr.dtype.element_ty),
        mask=(window < total)[:, None],
    )
    mean = tl.sum(pixels, 1) / SIZE
    centred = tl.where(is_value, pixels - mean[:, None], 0.0)
    variance = tl.sum(centred * centred, 1) / SIZE
    tl.store(mean_ptr + window, mean, mask=window < total)
    tl.store(rstd_ptr + window, tl.rsqrt(variance + EPS), mask=window < total)
