"""Shrinks images as they are decoded, by powers of two."""

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import UInt8
from torch import Tensor

MIN_PIXELS_TO_SHRINK = 1 << 19
"""Smaller images are not shrunk."""

_PIXELS_AT_ONCE = 1 << 22
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


def shrunk(
    pixels: UInt8[Tensor, "channels height width"], factor: int
) -> UInt8[Tensor, "channels shrunk_height shrunk_width"]:
    """Means over blocks of factor × factor pixels, smaller ones at the edges."""
    if factor == 1:
        return pixels
    channels, height, width = pixels.shape
    sides = channels, -(-height // factor), -(-width // factor)
    result = torch.empty(sides, dtype=torch.uint8, device=pixels.device)
    # A few rows at a time, since sums need more memory than pixels.
    rows = max(_PIXELS_AT_ONCE // (channels * width * factor), 1)
    for top in range(0, sides[1], rows):
        band = pixels[:, top * factor : (top + rows) * factor]
        if pixels.is_cuda:
            result[:, top : top + rows] = _pooled(band, factor)
        else:
            result.numpy()[:, top : top + rows] = _means(band.numpy(), factor)
    return result


def _pooled(band: Tensor, factor: int) -> Tensor:
    """Block means of a few rows; the sums are exact in float32."""
    means = F.avg_pool2d(band.float(), factor, ceil_mode=True)
    return (means + 0.5).floor().to(torch.uint8)


def _means(band: np.ndarray, factor: int) -> np.ndarray:
    """The same with NumPy, which starts no threads."""
    sums = band.astype(np.uint16 if factor <= 16 else np.uint32)
    counts = []
    for axis in (1, 2):
        starts = np.arange(0, band.shape[axis], factor)
        counts.append(np.diff(starts, append=band.shape[axis]))
        sums = np.add.reduceat(sums, starts, axis)
    num = np.outer(*counts)
    means: np.ndarray = ((2 * sums.astype(np.uint32) + num) // (2 * num)).astype(
        np.uint8
    )
    return means
