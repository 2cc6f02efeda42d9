"""Kernels from uint8 to uint8: crop and flip, and one operation per sample."""

# mypy: ignore-errors
# Triton's functions are a language of their own, without Python's types.

import triton
import triton.language as tl

from t2t.ops.kernels.augment_tables import LAST_TABLE, blend, load_luma
from t2t.ops.kernels.numbers import CODES

SATURATION = tl.constexpr(CODES["saturation"])
AFFINE_LINEAR = tl.constexpr(CODES["affine_linear"])
AFFINE_CUBIC = tl.constexpr(CODES["affine_cubic"])


@triton.jit
def reflect(position, size):
    """A position up to one size outside, reflected at the centre of border pixels."""
    return (size - 1) - tl.abs((size - 1) - tl.abs(position))


@triton.jit
def crop_and_flip(
    images_ptr,
    out_ptr,
    top_ptr,
    left_ptr,
    flip_ptr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    REFLECT: tl.constexpr,
    TILE: tl.constexpr,
):
    """A tile of a plane, from the sample's window."""
    num_pixels: tl.constexpr = HEIGHT * WIDTH
    num_tiles: tl.constexpr = (num_pixels + TILE - 1) // TILE
    plane = tl.program_id(0) // num_tiles
    sample = plane // CHANNELS
    pixel = tl.program_id(0) % num_tiles * TILE + tl.arange(0, TILE)
    mask = pixel < num_pixels
    column = pixel % WIDTH
    column = tl.where(tl.load(flip_ptr + sample), WIDTH - 1 - column, column)
    row = pixel // WIDTH + tl.load(top_ptr + sample).to(tl.int32)
    column += tl.load(left_ptr + sample).to(tl.int32)
    inside = mask
    if REFLECT:
        row, column = reflect(row, HEIGHT), reflect(column, WIDTH)
    else:
        inside &= (row >= 0) & (row < HEIGHT) & (column >= 0) & (column < WIDTH)
    offset = plane.to(tl.int64) * num_pixels
    level = tl.load(images_ptr + offset + row * WIDTH + column, mask=inside, other=0)
    tl.store(out_ptr + offset + pixel, level, mask=mask)


@triton.jit
def sharpen(plane_ptr, level, pixel, mask, height, width, factor):
    """A blend with the mean of 3 × 3 pixels, centre weighing 5; borders stay."""
    row, column = pixel // width, pixel % width
    within = mask & (row > 0) & (row < height - 1) & (column > 0) & (column < width - 1)
    total = 4 * level
    for down in tl.static_range(-1, 2):
        for across in tl.static_range(-1, 2):
            near_ptr = plane_ptr + pixel + down * width + across
            total += tl.load(near_ptr, mask=within, other=0).to(tl.int32)
    smooth = tl.where(within, (2 * total + 13) // 26, level)
    return blend(smooth, level, factor)


@triton.jit
def load_near(plane_ptr, start, position, across, size, mask):
    """The levels next to some positions of a row, borders repeated."""
    column = tl.minimum(tl.maximum(position + across, 0.0), size - 1.0).to(tl.int32)
    return tl.load(plane_ptr + start + column, mask=mask, other=0).to(tl.float32)


@triton.jit
def linear_row(plane_ptr, top, down, left, across, height, width, mask):
    """Between two neighbours of a row."""
    row = tl.minimum(tl.maximum(top + down, 0.0), height - 1.0).to(tl.int32)
    start = row * width
    first = load_near(plane_ptr, start, left, 0.0, width, mask)
    second = load_near(plane_ptr, start, left, 1.0, width, mask)
    return first + across * (second - first)


@triton.jit
def cubic_between(before, first, second, after, fraction):
    """Between four neighbours, by differences, which is exact for equal levels.

    PIL's transform uses a cubic with a = −1.
    """
    rest = 1.0 - fraction
    value = first + -fraction * rest * rest * (before - first)
    value = value + fraction * (1.0 + rest * fraction) * (second - first)
    return value + -fraction * fraction * rest * (after - first)


@triton.jit
def cubic_row(plane_ptr, top, down, left, across, height, width, mask):
    """Between four neighbours of a row."""
    row = tl.minimum(tl.maximum(top + down, 0.0), height - 1.0).to(tl.int32)
    start = row * width
    before = load_near(plane_ptr, start, left, -1.0, width, mask)
    first = load_near(plane_ptr, start, left, 0.0, width, mask)
    second = load_near(plane_ptr, start, left, 1.0, width, mask)
    after = load_near(plane_ptr, start, left, 2.0, width, mask)
    return cubic_between(before, first, second, after, across)


@triton.jit
def move(plane_ptr, matrix_ptr, pixel, mask, height, width, fill, is_cubic):
    """The levels that the sample's affine map shows."""
    column = (pixel % width).to(tl.float32) + 0.5
    row = (pixel // width).to(tl.float32) + 0.5
    x = tl.load(matrix_ptr) * column + tl.load(matrix_ptr + 1) * row
    x += tl.load(matrix_ptr + 2)
    y = tl.load(matrix_ptr + 3) * column + tl.load(matrix_ptr + 4) * row
    y += tl.load(matrix_ptr + 5)
    inside = mask & (x >= 0) & (x < width) & (y >= 0) & (y < height)
    left, top = tl.floor(x - 0.5), tl.floor(y - 0.5)
    across, down = x - 0.5 - left, y - 0.5 - top
    if is_cubic:
        value = cubic_between(
            cubic_row(plane_ptr, top, -1.0, left, across, height, width, inside),
            cubic_row(plane_ptr, top, 0.0, left, across, height, width, inside),
            cubic_row(plane_ptr, top, 1.0, left, across, height, width, inside),
            cubic_row(plane_ptr, top, 2.0, left, across, height, width, inside),
            down,
        )
    else:
        first = linear_row(plane_ptr, top, 0.0, left, across, height, width, inside)
        second = linear_row(plane_ptr, top, 1.0, left, across, height, width, inside)
        value = first + down * (second - first)
    level = tl.minimum(tl.maximum(value, 0.0), 255.0).to(tl.int32)
    return tl.where(inside, level, fill)


@triton.jit
def apply_beyond_tables(
    sample_ptr,
    channel,
    code,
    factor,
    matrix_ptr,
    fill,
    pixel,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """Some pixels of a plane after an operation that reads other pixels too."""
    mask = pixel < HEIGHT * WIDTH
    plane_ptr = sample_ptr + channel * HEIGHT * WIDTH
    if code >= AFFINE_LINEAR:
        is_cubic = code == AFFINE_CUBIC
        level = move(plane_ptr, matrix_ptr, pixel, mask, HEIGHT, WIDTH, fill, is_cubic)
    else:
        level = tl.load(plane_ptr + pixel, mask=mask, other=0).to(tl.int32)
        if code == SATURATION:
            grey = load_luma(sample_ptr, pixel, mask, HEIGHT * WIDTH, CHANNELS)
            level = blend(grey, level, factor)
        else:
            level = sharpen(plane_ptr, level, pixel, mask, HEIGHT, WIDTH, factor)
    return level


@triton.jit
def apply_operations(
    images_ptr,
    out_ptr,
    code_ptr,
    value_ptr,
    matrix_ptr,
    table_ptr,
    fill_ptr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A tile of a plane after the operation of its sample."""
    num_pixels: tl.constexpr = HEIGHT * WIDTH
    num_tiles: tl.constexpr = (num_pixels + TILE - 1) // TILE
    plane = tl.program_id(0) // num_tiles
    sample, channel = plane // CHANNELS, plane % CHANNELS
    start = tl.program_id(0) % num_tiles * TILE
    code = tl.load(code_ptr + sample)
    offset = plane.to(tl.int64) * num_pixels
    if code <= LAST_TABLE:
        pixel = start + tl.arange(0, TILE)
        mask = pixel < num_pixels
        level = tl.load(images_ptr + offset + pixel, mask=mask, other=0)
        if code > 0:
            level = tl.load(table_ptr + plane * 256 + level.to(tl.int32))
        tl.store(out_ptr + offset + pixel, level, mask=mask)
    else:
        # Fewer pixels at a time: these operations need many registers.
        for first in range(start, tl.minimum(start + TILE, num_pixels), BLOCK):
            pixel = first + tl.arange(0, BLOCK)
            level = apply_beyond_tables(
                images_ptr + sample.to(tl.int64) * CHANNELS * num_pixels,
                channel,
                code,
                tl.load(value_ptr + sample),
                matrix_ptr + sample * 6,
                tl.load(fill_ptr + channel).to(tl.int32),
                pixel,
                HEIGHT,
                WIDTH,
                CHANNELS,
            )
            at = out_ptr + offset + pixel
            tl.store(at, level.to(tl.uint8), mask=pixel < num_pixels)
