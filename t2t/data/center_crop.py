"""The centre crop of evaluation, planned without PyTorch."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

Sides = npt.NDArray[np.integer[Any]]


def center_boxes(
    heights: Sides, widths: Sides, size: tuple[int, int], fraction: float
) -> npt.NDArray[np.float32]:
    """Boxes (left, top, right, bottom) of images by their heights and widths.

    They are those of resizing to size / fraction and cropping to size.
    """
    # Sides and margins are rounded to whole pixels as torchvision does, then scaled
    # back: one resize of a box gives what the two steps give.
    want_height, want_width = (math.floor(side / fraction) for side in size)
    tall, wide = heights.astype(np.float64), widths.astype(np.float64)
    by_height = want_height / tall >= want_width / wide
    resized_height = np.where(
        by_height, want_height, np.floor(want_width * tall / wide)
    )
    resized_width = np.where(by_height, np.floor(want_height * wide / tall), want_width)
    top = np.round((resized_height - size[0]) / 2)
    left = np.round((resized_width - size[1]) / 2)
    shrink_y, shrink_x = tall / resized_height, wide / resized_width
    boxes = [
        left * shrink_x,
        top * shrink_y,
        (left + size[1]) * shrink_x,
        (top + size[0]) * shrink_y,
    ]
    return np.stack(boxes, axis=1).astype(np.float32)


def min_side_of(size: tuple[int, int], fraction: float) -> int:
    """The short side that images may be shrunk to before they are cropped to a size."""
    return math.ceil(max(size) * max(2.25, 2 / fraction))
