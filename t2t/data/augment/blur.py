"""Gaussian blur with a radius per sample."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from t2t.shapes import Pixels

_REACH = 2  # how far a box filter reaches at the largest sigma
_ONE = 1 << 24  # PIL's fixed point


def box_weights(sigma: Float[Tensor, " batch"]) -> Int64[Tensor, "batch 5"]:
    """A box of fractional width that, applied three times, has the Gaussian's variance.

    In units of 2⁻²⁴: full weight inside the box, less for the pixel on its edge.
    """
    variance = sigma**2 / 3
    whole = (((12 * variance + 1).sqrt() - 1) / 2).floor()
    part = (2 * whole + 1) * (whole * (whole + 1) - 3 * variance)
    part = part / (6 * (variance - (whole + 1) ** 2))
    inner = (_ONE / (2 * (whole + part) + 1)).long()[:, None]
    edge = (_ONE - (2 * whole.long()[:, None] + 1) * inner) // 2
    distance = torch.arange(-_REACH, _REACH + 1, device=sigma.device).abs()
    beyond = distance - whole[:, None]
    return torch.where(beyond <= 0, inner, torch.where(beyond == 1, edge, 0))


def gaussian_blur(images: Pixels, sigma: Float[Tensor, " batch"]) -> Pixels:
    """PIL's `ImageFilter.GaussianBlur` with a radius per sample, 0 to 2 pixels.

    Three box filters along the rows, then three along the columns, as PIL does.
    """
    weights = box_weights(sigma)[:, :, None, None, None]
    for axis in (3, 3, 3, 2, 2, 2):
        last = images.shape[axis] - 1
        place = torch.arange(last + 1, device=images.device)
        total = torch.full((), _ONE // 2, dtype=torch.int64, device=images.device)
        for shift in range(-_REACH, _REACH + 1):
            neighbours = images.index_select(axis, (place + shift).clamp(0, last))
            total = total + weights[:, shift + _REACH] * neighbours
        images = (total >> 24).to(torch.uint8)
    return images
