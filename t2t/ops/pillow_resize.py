"""Resizes a box of an image with Pillow, without PyTorch."""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from PIL import Image

PixelArray = npt.NDArray[np.uint8]


def resize_box(
    image: PixelArray, box: Sequence[float], size: tuple[int, int], *, bicubic: bool
) -> PixelArray:
    """The box (left, top, right, bottom) of an image at another size.

    Images are channels × height × width, and `size` is (height, width).
    """
    channels, image_height, image_width = image.shape
    left, top, right, bottom = box
    height, width = size
    kind = Image.Resampling.BICUBIC if bicubic else Image.Resampling.BILINEAR
    # Source pixels that the filter reaches each way.
    reach = max((bottom - top) / height, 1.0) * (2 if bicubic else 1)
    first = max(math.floor(top - reach - 1), 0)
    region = image[:, first : math.floor(bottom + reach + 2)]
    right, bottom = min(right, image_width), min(bottom, image_height)
    # Pillow would treat a fourth channel as alpha: only three are interleaved.
    interleaved = region.transpose(1, 2, 0)
    together = channels == 3 and interleaved.flags.c_contiguous
    resized = []
    for plane in [interleaved] if together else list(region):
        picture = Image.fromarray(np.ascontiguousarray(plane))
        rows = picture.height
        # One side at a time: given both at once, Pillow 13 starts with the cheaper one.
        picture = picture.resize((width, rows), kind, (left, 0, right, rows))
        inner = (0, top - first, width, bottom - first)
        resized.append(np.asarray(picture.resize((width, height), kind, inner)))
    return resized[0].transpose(2, 0, 1) if together else np.stack(resized)
