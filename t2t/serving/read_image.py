"""Reads images of any form: paths, bytes, Pillow images, arrays and tensors."""

import io
import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from PIL import Image, ImageOps

from t2t.data.decoding.damage import DamagedImage
from t2t.data.decoding.levels import PixelArray, levels_of, pixels_of
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
# Pillow reads an image's file on first use, which is not thread-safe.
_ONE_READER = Lock()


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
    if isinstance(image, bytes | DamagedImage):
        return image
    if isinstance(image, Image.Image):
        try:
            return stored(image)
        except Exception as error:  # of any kind: Pillow reads the file only now
            return damage(name, error)
    pixels = image
    if isinstance(image, np.ndarray):
        pixels = image[None] if image.ndim == 2 else np.moveaxis(image, -1, 0)
    # Tensors are recognised without importing torch, which takes seconds.
    dtype = str(getattr(pixels, "dtype", "")).removeprefix("torch.")
    if dtype != "uint8" or len(pixels.shape) != 3:
        raise UserError(
            f"{name} is a {kind_of(image)}; give a path, bytes, a Pillow image, "
            "or uint8 pixels (a tensor of channels × height × width, an array of "
            "height × width × channels)."
        )
    if not math.prod(pixels.shape):
        return DamagedImage(name, "it has no pixels")
    read: ReadImage = pixels
    return read


def stored(picture: Image.Image) -> bytes | PixelArray:
    """A Pillow image as the bytes of a lossless file, decoded like any other file.

    An image with more than 8 bits per pixel is converted to pixels directly.
    """
    with _ONE_READER:
        upright = ImageOps.exif_transpose(picture)
    upright.format = picture.format
    if (levels := levels_of(upright)) is not None:
        return pixels_of(upright, "L", levels)
    if upright.mode not in ("1", "L", "LA", "P", "RGB", "RGBA"):
        upright = upright.convert("RGB")
    file = io.BytesIO()
    upright.save(file, "PNG", compress_level=1)
    return file.getvalue()


def kind_of(image: Any) -> str:
    """A description of an object that is not an image."""
    if hasattr(image, "dtype") and hasattr(image, "shape"):
        kind = "array" if isinstance(image, np.ndarray) else "tensor"
        shape = " × ".join(map(str, image.shape))
        return f"{str(image.dtype).removeprefix('torch.')} {kind} of {shape}"
    return type(image).__name__


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
