"""Images that are Python objects: Pillow images, tensors and arrays."""

import io
import math
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image, ImageOps

from t2t.data.decoding.damage import DamagedImage
from t2t.data.decoding.levels import PixelArray, levels_of, pixels_of
from t2t.data.decoding.shrinking import MIN_PIXELS_TO_SHRINK as LARGE
from t2t.errors import UserError

if TYPE_CHECKING:  # prediction by ONNX Runtime imports no torch
    from torch import Tensor

# Pillow reads an image's file on first use, which is not thread-safe.
_ONE_READER = Lock()


def image_data(image: Any, name: str) -> "bytes | PixelArray | Tensor":
    """The bytes of an image's file, or its uint8 pixels with the channels first.

    Raises UserError for other objects; Pillow may read the file only now, and raise
    any error.
    """
    if isinstance(image, bytes):
        return image
    if isinstance(image, Image.Image):
        return stored(image)
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
        raise DamagedImage(name, "it has no pixels")
    if isinstance(pixels, np.ndarray):
        return np.ascontiguousarray(pixels)
    tensor: Tensor = pixels
    return tensor


def stored(picture: Image.Image) -> bytes | PixelArray:
    """A Pillow image as the bytes of a lossless file, decoded like any other file.

    Small images, and those with more than 8 bits per pixel, become pixels directly.
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


def kind_of(image: Any) -> str:
    """A description of an object that is not an image."""
    if hasattr(image, "dtype") and hasattr(image, "shape"):
        kind = "array" if isinstance(image, np.ndarray) else "tensor"
        shape = " × ".join(map(str, image.shape)) or "one value"
        return f"{str(image.dtype).removeprefix('torch.')} {kind} of {shape}"
    return type(image).__name__
