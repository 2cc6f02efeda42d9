"""Random erasing: a rectangle of noise or of the mean colour over some samples."""

import math
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from t2t.data.draws import Draws
from t2t.shapes import Images

EraseFill = Literal["noise", "constant"]
_TRIES = 10


def inside_box(
    box: Int64[Tensor, "batch 4"], height: int, width: int
) -> Bool[Tensor, "batch 1 height width"]:
    """Which pixels lie in each sample's box of (top, bottom, left, right)."""
    row = torch.arange(height, device=box.device)[:, None]
    column = torch.arange(width, device=box.device)
    top, bottom, left, right = box[:, :, None, None, None].unbind(1)
    return (row >= top) & (row < bottom) & (column >= left) & (column < right)


def draw_erase_box(
    draws: Draws,
    height: int,
    width: int,
    probability: float,
    area: tuple[float, float],
    aspect: float,
) -> Int64[Tensor, "batch 4"]:
    """A box per sample with timm's meaning, empty where nothing is to be erased.

    The share of the area is uniform, the aspect ratio log-uniform between `aspect` and
    its inverse, in the first of ten tries that fits inside the image.
    """
    share = draws.uniform("erase.area", _TRIES, low=area[0], high=area[1])
    log_aspect = -math.log(aspect)
    ratio = draws.uniform("erase.aspect", _TRIES, low=-log_aspect, high=log_aspect)
    heights = (share * (height * width) * ratio.exp()).sqrt().round().long()
    widths = (share * (height * width) / ratio.exp()).sqrt().round().long()
    fits = (heights < height) & (widths < width)
    first = fits.int().argmax(1, keepdim=True)
    is_erased = draws.bernoulli("erase.apply", probability)
    is_erased = is_erased & fits.gather(1, first)
    box_height, box_width = heights.gather(1, first), widths.gather(1, first)
    top = draws.integers("erase.top", (height - box_height + 1).clamp(min=1))
    left = draws.integers("erase.left", (width - box_width + 1).clamp(min=1))
    box = torch.cat([top, top + box_height, left, left + box_width], 1)
    return torch.where(is_erased, box, 0)


def erase(
    images: Images, box: Int64[Tensor, "batch 4"], draws: Draws, fill: EraseFill
) -> Images:
    """The boxes of normalised images filled with standard normal noise or with 0."""
    inside = inside_box(box, *images.shape[2:])
    if fill == "constant":
        return torch.where(inside, 0.0, images)
    noise: Float[Tensor, "batch pixels"] = draws.normal(
        "erase.noise", images[0].numel()
    )
    return torch.where(inside, noise.view_as(images).to(images.dtype), images)
