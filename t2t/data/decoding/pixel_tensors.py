"""Tensors of pixels: turned upright, shrunk, converted to other channels."""

import torch
import torch.nn.functional as F
from jaxtyping import UInt8
from torch import Tensor

from t2t.data.decoding.shrinking import bands, block_means
from t2t.errors import UserError

ImagePixels = UInt8[Tensor, "channels height width"]

_LUMA = (0.299, 0.587, 0.114)


def with_channels(pixels: ImagePixels, channels: int, name: str = "") -> ImagePixels:
    """Converts between grey, RGB and RGBA; added opacity is full."""
    given = pixels.shape[0]
    if given == channels:
        return pixels
    if channels == 1 and given in (3, 4):
        weights = torch.tensor(_LUMA, device=pixels.device).view(3, 1, 1)
        return (pixels[:3] * weights).sum(0, keepdim=True).round().to(torch.uint8)
    if given == 1 and channels == 3:
        return pixels.expand(3, -1, -1).contiguous()
    if given == 4 and channels == 3:
        return pixels[:3].contiguous()
    if channels == 4 and given in (1, 3):
        opaque = torch.full_like(pixels[:1], 255)
        return torch.cat([pixels.expand(3, -1, -1), opaque])
    raise UserError(
        f"{name or 'An image'} has {given} channels, which cannot become {channels}."
    )


def upright(pixels: Tensor, orientation: int) -> Tensor:
    """Pixels rotated and flipped by their Exif orientation, 1 to 8."""
    if orientation == 1:
        return pixels
    if orientation >= 5:
        pixels = pixels.transpose(-1, -2)
    flips = {2: (-1,), 3: (-1, -2), 4: (-2,), 6: (-1,), 7: (-1, -2), 8: (-2,)}
    if orientation in flips:
        pixels = pixels.flip(flips[orientation])
    return pixels


def shrunk(
    pixels: ImagePixels, factor: int
) -> UInt8[Tensor, "channels shrunk_height shrunk_width"]:
    """Means over blocks of factor × factor pixels, smaller ones at the edges."""
    if factor == 1:
        return pixels
    channels, height, width = pixels.shape
    sides = channels, -(-height // factor), -(-width // factor)
    result = torch.empty(sides, dtype=torch.uint8, device=pixels.device)
    for top, rows in bands(pixels.shape, factor):
        band = pixels[:, top * factor : (top + rows) * factor]
        if pixels.is_cuda:
            result[:, top : top + rows] = _pooled(band, factor)
        else:
            result.numpy()[:, top : top + rows] = block_means(band.numpy(), factor)
    return result


def _pooled(band: Tensor, factor: int) -> Tensor:
    """Block means of a few rows; the sums are exact in float32."""
    means = F.avg_pool2d(band.float(), factor, ceil_mode=True)
    return (means + 0.5).floor().to(torch.uint8)
