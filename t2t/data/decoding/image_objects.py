"""Images that are Python objects: Pillow images, tensors and arrays."""

import io
from threading import Lock
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from t2t.data.decoding.damage import DamagedImage
from t2t.data.decoding.levels import levels_of, pixels_of
from t2t.data.decoding.shrinking import MIN_PIXELS_TO_SHRINK as LARGE
from t2t.errors import UserError

# Pillow reads an image's file on first use, which is not thread-safe.
_ONE_READER = Lock()


def image_data(image: Any, name: str) -> bytes | Tensor:
    """The bytes of an image's file, or its uint8 pixels.

    Raises UserError for what is no image; Pillow may read the file of an image only
    now, and raise any error.
    """
    if isinstance(image, bytes):
        return image
    if isinstance(image, Image.Image):
        return stored(image)
    if isinstance(image, np.ndarray):
        image = from_array(image)
    if not isinstance(image, Tensor) or image.ndim != 3 or image.dtype != torch.uint8:
        raise UserError(
            f"{name} is a {kind_of(image)}; give a path, bytes, a Pillow image, "
            "or uint8 pixels (a tensor of channels × height × width, an array of "
            "height × width × channels)."
        )
    if not image.numel():
        raise DamagedImage(name, "it has no pixels")
    return image


def from_array(image: np.ndarray) -> Tensor:
    """Pixels with the channels first, from an array with the channels last."""
    planes = image[None] if image.ndim == 2 else np.moveaxis(image, -1, 0)
    return torch.from_numpy(np.ascontiguousarray(planes))


def stored(picture: Image.Image) -> bytes | Tensor:
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
    if upright.mode in ("L", "RGB") and upright.width * upright.height < LARGE:
        return pixels_of(upright, upright.mode, None)
    file = io.BytesIO()
    upright.save(file, "PNG", compress_level=1)
    return file.getvalue()


def kind_of(image: object) -> str:
    """A description of an object that is not an image."""
    if isinstance(image, Tensor | np.ndarray):
        what = "tensor" if isinstance(image, Tensor) else "array"
        shape = " × ".join(map(str, image.shape)) or "one value"
        return f"{str(image.dtype).removeprefix('torch.')} {what} of {shape}"
    return type(image).__name__
