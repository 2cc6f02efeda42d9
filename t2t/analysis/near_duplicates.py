"""Near-duplicates: copies of an image, also compressed, resized or slightly cropped."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from t2t.analysis.knn import nearest
from t2t.shapes import Images

Colours = Float[Tensor, "images values"]

GRID = 16
"""Rows and columns that an image is averaged to."""
NUM_NEIGHBORS = 10
MAX_RATIO = 0.4
"""A near-duplicate is this much nearer than the tenth nearest image.

Chosen on CIFAR-10, Imagewoof and digits (records/cifar10-wrong-labels). A limit of the
distance alone would report every image where all images look alike.
"""
COPY_DISTANCE = 0.02
"""Images up to this distance are copies, however many there are."""
MAX_DISTANCE = 0.6
"""Largest distance of near-duplicates; slightly cropped copies have at most 0.5."""
_MIN_STD = 0.02
"""Images with a smaller standard deviation are not compared."""


class Pair(NamedTuple):
    """Two images that look the same."""

    first: int
    second: int
    distance: float
    """0 for a copy; sqrt(2) for images that have nothing in common."""


def colour_features(images: Images) -> Float[Tensor, "batch values"]:
    """The colours of normalised images on a coarse grid, without their brightness.

    Of length 1, or 0 for an image of one colour.
    """
    grid = F.adaptive_avg_pool2d(images.float(), GRID).flatten(1)
    centred = grid - grid.mean(1, keepdim=True)
    lengths = centred.norm(dim=1, keepdim=True)
    is_flat = lengths < _MIN_STD * grid.shape[1] ** 0.5
    return torch.where(is_flat, torch.zeros_like(centred), centred / lengths)


def find_near_duplicates(first: Colours, second: Colours | None = None) -> list[Pair]:
    """The pairs of an image and another one that are near-duplicates, nearest first.

    Without `second`, they are pairs within one set, each once.
    """
    is_same = second is None
    others = first if second is None else second
    values, indices = nearest(first.float(), others.float(), NUM_NEIGHBORS + is_same)
    # Rounding makes the square of a copy's distance a little more or less than 0.
    distances = (2 - 2 * values).clamp(min=0).sqrt()
    limits = (MAX_RATIO * distances[:, -1:]).clamp(max=MAX_DISTANCE)
    is_near = (distances < limits) | (distances < COPY_DISTANCE)
    pairs = {}
    for row, rank in is_near.nonzero().tolist():
        other = int(indices[row, rank])
        first_row, second_row = sorted((row, other)) if is_same else (row, other)
        if not is_same or row != other:
            distance = float(distances[row, rank])
            pairs[first_row, second_row] = Pair(first_row, second_row, distance)
    return sorted(pairs.values(), key=lambda pair: pair.distance)
