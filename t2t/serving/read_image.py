"""Reads images of any form: paths, bytes, Pillow images, arrays and tensors."""

import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from PIL import Image

from t2t.data.decoding.damage import DamagedImage
from t2t.data.decoding.image_objects import image_data
from t2t.data.decoding.levels import PixelArray
from t2t.data.decoding.pillow_decoder import image_size
from t2t.data.decoding.shrinking import shrunk_size
from t2t.data.image_files import read_whole
from t2t.errors import UserError
from t2t.serving.inputs import damage

if TYPE_CHECKING:
    from torch import Tensor

ImageLike: TypeAlias = str | os.PathLike[str] | bytes | Image.Image | Any
"""A path, an encoded file, a Pillow image, or uint8 pixels.

Tensors are channels × height × width, NumPy arrays height × width (× channels).
"""
ReadImage: TypeAlias = "bytes | PixelArray | Tensor | DamagedImage"
"""An encoded file, pixels (channels × height × width), or why there are none."""

# Decoded photographs are large: at most this many, with this many pixels in all, are
# in memory before they are cropped.
_NUM_DECODED = 16
_PIXELS_DECODED = 1 << 26


def name_of(image: ImageLike, number: int) -> str:
    """The name of an image: its path or its number."""
    if isinstance(image, DamagedImage):
        return image.name
    if isinstance(image, str | os.PathLike):
        return os.fspath(image)
    return getattr(image, "filename", "") or f"image {number}"


def read_image(image: ImageLike, name: str) -> ReadImage:
    """The encoded file or the pixels of an image, or why it cannot be read."""
    if isinstance(image, str | os.PathLike):
        try:
            return read_whole(Path(image).expanduser())
        except (OSError, MemoryError) as error:
            return damage(name, error)
        except ValueError as error:  # a NUL in it
            return DamagedImage(name, f"not a path ({error})")
    if isinstance(image, DamagedImage):
        return image
    try:
        return image_data(image, name)
    except DamagedImage as damaged:
        return damaged
    except UserError:
        raise
    except Exception as error:  # of any kind: Pillow reads the file only now
        return damage(name, error)


def decoding_groups(
    images: Iterable[ReadImage], min_side: int | None = None
) -> Iterator[list[int]]:
    """Indices of images, in groups whose pixels fit into memory."""
    group: list[int] = []
    total = 0
    for index, image in enumerate(images):
        size = image_size(image) if isinstance(image, bytes) else (0, 0)
        num = math.prod(shrunk_size(*size, min_side))
        full = len(group) == _NUM_DECODED or total + num > _PIXELS_DECODED
        if group and full:
            yield group
            group, total = [], 0
        group.append(index)
        total += num
    if group:
        yield group
