"""Tables of 256 levels for colour operations, one per sample and channel."""

# mypy: ignore-errors
# Triton's functions are a language of their own, without Python's types.

import triton
import triton.language as tl

from t2t.ops.kernels.numbers import CODES

BRIGHTNESS = tl.constexpr(CODES["brightness"])
CONTRAST = tl.constexpr(CODES["contrast"])
POSTERIZE = tl.constexpr(CODES["posterize"])
SOLARIZE = tl.constexpr(CODES["solarize"])
SOLARIZE_ADD = tl.constexpr(CODES["solarize_add"])
AUTO_CONTRAST = tl.constexpr(CODES["auto_contrast"])
EQUALIZE = tl.constexpr(CODES["equalize"])
LAST_TABLE = tl.constexpr(CODES["equalize"])


@triton.jit
def blend(base, level, factor):
    """PIL's blend of two whole levels, truncated."""
    difference = (level - base).to(tl.float32)
    blended = base.to(tl.float32) + factor * difference
    return tl.minimum(tl.maximum(blended, 0.0), 255.0).to(tl.int32)


@triton.jit
def load_luma(pixels_ptr, pixel, mask, num_pixels, CHANNELS: tl.constexpr):
    """The grey level of some pixels of a sample, as PIL converts RGB to L."""
    grey = tl.load(pixels_ptr + pixel, mask=mask, other=0).to(tl.int32)
    if CHANNELS == 3:
        green = tl.load(pixels_ptr + num_pixels + pixel, mask=mask, other=0)
        blue = tl.load(pixels_ptr + 2 * num_pixels + pixel, mask=mask, other=0)
        grey = grey * 19595 + green.to(tl.int32) * 38470 + blue.to(tl.int32) * 7471
        grey = (grey + 0x8000) >> 16
    return grey


@triton.jit
def mean_luma(pixels_ptr, num_pixels, CHANNELS: tl.constexpr, BLOCK: tl.constexpr):
    """The mean grey level of a sample, rounded half up."""
    total = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, num_pixels, BLOCK):
        pixel = start + tl.arange(0, BLOCK)
        total += load_luma(pixels_ptr, pixel, pixel < num_pixels, num_pixels, CHANNELS)
    doubled = 2 * tl.sum(total.to(tl.int64), 0) + num_pixels
    return (doubled // (2 * num_pixels)).to(tl.int32)


@triton.jit
def histogram(plane_ptr, num_pixels, BLOCK: tl.constexpr):
    """How many pixels of a plane have each level."""
    counts = tl.zeros((256,), tl.int32)
    for start in range(0, num_pixels, BLOCK):
        pixel = start + tl.arange(0, BLOCK)
        level = tl.load(plane_ptr + pixel, mask=pixel < num_pixels, other=0)
        counts += tl.histogram(level.to(tl.int32), 256)
    # Pixels past the plane were counted as level 0.
    past = tl.cdiv(num_pixels, BLOCK) * BLOCK - num_pixels
    return counts - tl.where(tl.arange(0, 256) == 0, past, 0)


@triton.jit
def auto_contrast(level, counts):
    """Stretches the levels that occur to the full range, in PIL's double precision."""
    lowest = tl.min(tl.where(counts > 0, level, 255), 0)
    highest = tl.max(tl.where(counts > 0, level, 0), 0)
    spread = tl.maximum(highest - lowest, 1).to(tl.float64)
    scale = tl.full((), 255.0, tl.float64) / spread
    stretched = level.to(tl.float64) * scale + (-lowest).to(tl.float64) * scale
    stretched = tl.minimum(tl.maximum(stretched, 0.0), 255.0).to(tl.int32)
    return tl.where(highest > lowest, stretched, level)


@triton.jit
def equalize(level, counts, num_pixels):
    """Equalizes the histogram."""
    highest = tl.max(tl.where(counts > 0, level, 0), 0)
    num_highest = tl.sum(tl.where(level == highest, counts, 0), 0)
    step = (num_pixels - num_highest) // 255
    before = tl.cumsum(counts, 0) - counts
    spread = tl.minimum((step // 2 + before) // tl.maximum(step, 1), 255)
    # A channel of one level, or with too few pixels, is not changed.
    return tl.where(step > 0, spread, level)


@triton.jit
def make_tables(
    images_ptr,
    table_ptr,
    code_ptr,
    value_ptr,
    num_pixels,
    CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The table of one plane, if its sample's operation has one."""
    plane = tl.program_id(0)
    sample = plane // CHANNELS
    code = tl.load(code_ptr + sample)
    if (code > 0) & (code <= LAST_TABLE):
        value = tl.load(value_ptr + sample)
        sample_ptr = images_ptr + sample.to(tl.int64) * CHANNELS * num_pixels
        plane_ptr = images_ptr + plane.to(tl.int64) * num_pixels
        level = tl.arange(0, 256)
        result = 255 - level  # invert, unless it is one of these:
        if code == BRIGHTNESS:
            result = blend(tl.zeros_like(level), level, value)
        elif code == CONTRAST:
            mean = mean_luma(sample_ptr, num_pixels, CHANNELS, BLOCK)
            result = blend(tl.zeros_like(level) + mean, level, value)
        elif code == POSTERIZE:
            dropped = 8 - tl.minimum(tl.maximum(value, 0.0), 8.0).to(tl.int32)
            result = (level >> dropped) << dropped
        elif code == SOLARIZE:
            result = tl.where(level.to(tl.float32) < value, level, 255 - level)
        elif code == SOLARIZE_ADD:
            added = tl.minimum(level + value.to(tl.int32), 255)
            result = tl.where(level < 128, added, level)
        elif code == AUTO_CONTRAST:
            result = auto_contrast(level, histogram(plane_ptr, num_pixels, BLOCK))
        elif code == EQUALIZE:
            counts = histogram(plane_ptr, num_pixels, BLOCK)
            result = equalize(level, counts, num_pixels)
        tl.store(table_ptr + plane * 256 + level, result.to(tl.uint8))
