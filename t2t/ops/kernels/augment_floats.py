"""The last pass of augmentation: mixing, normalising and erasing, uint8 to floats."""

# mypy: ignore-errors
# Triton's functions are a language of their own, without Python's types.

import triton
import triton.language as tl

# splitmix64, as in `t2t.ops.draw_bits`.
INCREMENT = tl.constexpr(0x9E3779B97F4A7C15)
FIRST = tl.constexpr(0xBF58476D1CE4E5B9)
SECOND = tl.constexpr(0x94D049BB133111EB)


@triton.jit
def absorb(state, word):
    """The next 64-bit state after a word: the hash that all draws use."""
    mixed = (state ^ word).to(tl.uint64, bitcast=True) * INCREMENT
    mixed = (mixed ^ (mixed >> 30)) * FIRST
    mixed = (mixed ^ (mixed >> 27)) * SECOND
    return (mixed ^ (mixed >> 31)).to(tl.int64, bitcast=True)


@triton.jit
def draw_normal(key, number):
    """Standard normals by Box and Muller's formula."""
    bits = absorb(key, number.to(tl.int64)).to(tl.uint64, bitcast=True)
    radius = ((bits >> 40).to(tl.int32).to(tl.float32) + 0.5) * 5.9604644775390625e-08
    angle = ((bits >> 8) & 0xFFFFFF).to(tl.int32).to(tl.float32)
    angle = angle * 3.7450702829239286e-07  # 2π / 2²⁴
    return tl.sqrt_rn(-2.0 * tl.log(radius)) * tl.cos(angle)


@triton.jit
def load_rows(box_ptr, first_row, last_row):
    """The rows of a box of (top, bottom, left, right), and whether any is in range."""
    top, bottom = tl.load(box_ptr).to(tl.int32), tl.load(box_ptr + 1).to(tl.int32)
    return top, bottom, (first_row < bottom) & (last_row >= top)


@triton.jit
def inside_box(box_ptr, top, bottom, pixel, WIDTH: tl.constexpr):
    """Which pixels are inside a box with these rows."""
    left, right = tl.load(box_ptr + 2).to(tl.int32), tl.load(box_ptr + 3).to(tl.int32)
    row, column = pixel // WIDTH, pixel % WIDTH
    return (row >= top) & (row < bottom) & (column >= left) & (column < right)


@triton.jit(do_not_specialize=["word", "group"])
def mix_normalise_erase(
    images_ptr,
    out_ptr,
    kept_ptr,
    cut_ptr,
    scale_ptr,
    shift_ptr,
    box_ptr,
    key_ptr,
    word,
    group,
    mix_stride,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    MIX: tl.constexpr,
    ERASE: tl.constexpr,
    NOISE: tl.constexpr,
    TILE: tl.constexpr,
):
    """A tile of a plane: mixed with its partner's, normalised, erased."""
    num_pixels: tl.constexpr = HEIGHT * WIDTH
    num_tiles: tl.constexpr = (num_pixels + TILE - 1) // TILE
    plane = tl.program_id(0) // num_tiles
    sample, channel = plane // CHANNELS, plane % CHANNELS
    start = tl.program_id(0) % num_tiles * TILE
    pixel = start + tl.arange(0, TILE)
    mask = pixel < num_pixels
    first_row, last_row = start // WIDTH, (start + TILE - 1) // WIDTH
    # All loads for the sample are issued before any result is used.
    scale, shift = tl.load(scale_ptr + channel), tl.load(shift_ptr + channel)
    if MIX:
        partner = sample // group * group + (group - 1 - sample % group)
        kept = tl.load(kept_ptr + sample * mix_stride)
        cut_ptr += sample * mix_stride * 4
        cut_top, cut_bottom, is_cut = load_rows(cut_ptr, first_row, last_row)
    if ERASE:
        box_ptr += sample * 4
        top, bottom, is_erased = load_rows(box_ptr, first_row, last_row)
    offset = plane.to(tl.int64) * num_pixels
    value = tl.load(images_ptr + offset + pixel, mask=mask, other=0).to(tl.float32)
    if MIX:
        other_ptr = images_ptr + partner.to(tl.int64) * CHANNELS * num_pixels
        other_ptr += channel * num_pixels
        other = tl.load(other_ptr + pixel, mask=mask, other=0).to(tl.float32)
        share = tl.zeros((TILE,), tl.float32) + kept
        if is_cut:
            inside = inside_box(cut_ptr, cut_top, cut_bottom, pixel, WIDTH)
            share = tl.where(inside, 0.0, share)
        value = value * share + other * (1.0 - share)
    value = value * scale + shift
    if ERASE:  # noqa: SIM102, decided when compiled
        if is_erased:  # only here: noise costs more than all the rest
            noise = tl.zeros((TILE,), tl.float32)
            if NOISE:
                key = absorb(tl.load(key_ptr + sample), word.to(tl.int64))
                noise = draw_normal(key, channel * num_pixels + pixel)
            inside = inside_box(box_ptr, top, bottom, pixel, WIDTH)
            value = tl.where(inside, noise, value)
    tl.store(out_ptr + offset + pixel, value.to(out_ptr.dtype.element_ty), mask=mask)
