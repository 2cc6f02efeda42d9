"""Random erasing: a rectangle of noise or of the mean colour over some samples."""

import math

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from t2t.data.augment.config import EraseFill
from t2t.data.rng import CounterRng
from t2t.shapes import Images

NOISE_STREAM = "erase.noise"
_TRIES = 10


def inside_box(
    box: Int64[Tensor, "batch 4"], height: int, width: int
) -> Bool[Tensor, "batch 1 height width"]:
    """Which pixels are in each sample's box of (top, bottom, left, right)."""
    row = torch.arange(height, device=box.device)[:, None]
    column = torch.arange(width, device=box.device)
    top, bottom, left, right = box[:, :, None, None, None].unbind(1)
    return (row >= top) & (row < bottom) & (column >= left) & (column < right)


def draw_erase_box(
    rng: CounterRng,
    height: int,
    width: int,
    probability: float,
    area: tuple[float, float],
    aspect: float,
) -> Int64[Tensor, "batch 4"]:
    """A box per sample as timm draws it, empty if nothing is erased.

    The share of the area is uniform, the aspect ratio log-uniform between `aspect` and
    its inverse, in the first of ten tries that fits inside the image.
    """
    drawn = rng.uniform("erase", 2 * _TRIES + 3)
    shares, aspects, places, apply = drawn.split((_TRIES, _TRIES, 2, 1), 1)
    areas = (area[0] + (area[1] - area[0]) * shares) * (height * width)
    ratios = (math.log(aspect) * (1.0 - 2.0 * aspects)).exp()
    heights = (areas * ratios).sqrt().round().long()
    widths = (areas / ratios).sqrt().round().long()
    fits = (heights < height) & (widths < width)
    first = fits.int().argmax(1, keepdim=True)
    is_erased = (apply < probability) & fits.gather(1, first)
    box_height, box_width = heights.gather(1, first), widths.gather(1, first)
    top = (places[:, :1] * (height - box_height + 1)).long()
    left = (places[:, 1:] * (width - box_width + 1)).long()
    box = torch.cat([top, top + box_height, left, left + box_width], 1)
    return torch.where(is_erased, box, 0)


def erase(
    images: Images, box: Int64[Tensor, "batch 4"], rng: CounterRng, fill: EraseFill
) -> Images:
    """The boxes of normalised images filled with standard normal noise or with 0."""
    inside = inside_box(box, *images.shape[2:])
    if fill == "constant":
        return torch.where(inside, 0.0, images)
    noise: Float[Tensor, "batch pixels"] = rng.normal(NOISE_STREAM, images[0].numel())
    return torch.where(inside, noise.view_as(images).to(images.dtype), images)
