"""Shrinks images as they are decoded, by powers of two."""

from collections.abc import Iterator

import numpy as np

from t2t.data.decoding.levels import PixelArray

MIN_PIXELS_TO_SHRINK = 1 << 19
"""Smaller images are not shrunk."""

PIXELS_AT_ONCE = 1 << 22
# A JPEG can be decoded at a half, a quarter or an eighth of its size.
_MAX_JPEG_FACTOR = 8


def shrink_factor(height: int, width: int, min_side: int | None) -> int:
    """The largest power of two that keeps the short side at `min_side` or more.

    1 for images below half a megapixel.
    """
    if min_side is None or height * width < MIN_PIXELS_TO_SHRINK:
        return 1
    return 1 << max((min(height, width) // max(min_side, 1)).bit_length() - 1, 0)


def jpeg_factor(factor: int) -> int:
    """The part of a factor that the JPEG decoder itself can apply."""
    return min(factor, _MAX_JPEG_FACTOR)


def shrunk_size(height: int, width: int, min_side: int | None) -> tuple[int, int]:
    """The size that an image is decoded to."""
    factor = shrink_factor(height, width, min_side)
    return -(-height // factor), -(-width // factor)


def shrunk(pixels: PixelArray, factor: int) -> PixelArray:
    """Means over blocks of factor × factor pixels, smaller ones at the edges."""
    if factor == 1:
        return pixels
    channels, height, width = pixels.shape
    result = np.empty(
        (channels, -(-height // factor), -(-width // factor)), dtype=np.uint8
    )
    for top, rows in bands(pixels.shape, factor):
        band = pixels[:, top * factor : (top + rows) * factor]
        result[:, top : top + rows] = block_means(band, factor)
    return result


def bands(shape: tuple[int, ...], factor: int) -> Iterator[tuple[int, int]]:
    """The first row and the number of rows of each part of a shrunk image.

    Sums need more memory than pixels, so that a few rows are computed at a time.
    """
    channels, height, width = shape
    rows = max(PIXELS_AT_ONCE // (channels * width * factor), 1)
    for top in range(0, -(-height // factor), rows):
        yield top, rows


def block_means(band: PixelArray, factor: int) -> PixelArray:
    """Means over blocks of a few rows, by NumPy, which starts no threads."""
    sums = band.astype(np.uint16 if factor <= 16 else np.uint32)
    counts = []
    for axis in (1, 2):
        starts = np.arange(0, band.shape[axis], factor)
        counts.append(np.diff(starts, append=band.shape[axis]))
        sums = np.add.reduceat(sums, starts, axis)
    num = np.outer(*counts)
    return ((2 * sums.astype(np.uint32) + num) // (2 * num)).astype(np.uint8)
