"""Converts Pillow's image modes to 8 bits per channel."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

from t2t.errors import UserError

PixelArray = npt.NDArray[np.uint8]
"""Pixels of an image: channels, height and width."""

_LUMA = (0.299, 0.587, 0.114)
_SINGLE = ("F", "I;16", "I;16L", "I;16B", "I;16N", "I")
_BITS_PER_SAMPLE = 258
_PHOTOMETRIC = 262


class Levels(NamedTuple):
    """The value of white, or of black where values are inverted."""

    white: float
    is_inverted: bool


def levels_of(image: Image.Image) -> Levels | None:
    """The range of an image with more than 8 bits per pixel, else None.

    16-bit files state it. 32-bit integers and floating point do not: there, white is
    the smallest of the usual values that no pixel exceeds.
    """
    if image.mode not in _SINGLE:
        return None
    # Pillow reads 16-bit images of other formats as "I", at the full range.
    is_free = image.mode == "F" or (
        image.mode == "I" and image.format in (None, "TIFF")
    )
    if not is_free:
        is_inverted = _tag(image, _PHOTOMETRIC, 1) == 0  # Pillow does not invert these
        bits = 12 if _tag(image, _BITS_PER_SAMPLE, 16) == 12 else 16
        return Levels(float((1 << bits) - 1), is_inverted)
    low, high = image.getextrema()
    assert isinstance(low, int | float)
    assert isinstance(high, int | float)
    usual = (1.0, 255.0, 65535.0) if image.mode == "F" else (255.0, 65535.0)
    white = next((each for each in usual if high <= each), None)
    if white is None or low < 0:
        kind = "floating point" if image.mode == "F" else "32-bit"
        known = ", ".join(f"0 to {each:.0f}" for each in usual)
        raise ValueError(
            f"its {kind} pixels range from {low:g} to {high:g}; allowed are {known}: "
            "store it with 8 or 16 bits"
        )
    return Levels(white, is_inverted=False)


def _tag(image: Image.Image, tag: int, default: int) -> Any:
    """The first value of a TIFF tag; the default for other formats."""
    value = getattr(image, "tag_v2", {}).get(tag, default)
    return value[0] if isinstance(value, tuple) and value else value


def pixels_of(image: Image.Image, mode: str, levels: Levels | None) -> PixelArray:
    """The pixels of an image or a part of it; `levels` are those of the whole image."""
    if levels is not None:
        values = np.asarray(image)
        if levels.white == 65535 and values.dtype.kind == "u":
            # 65535 becomes 255 exactly; the same as dividing by 257 and rounding.
            grey = (values.astype(np.uint32) + 128) // 257
        else:
            if not np.isfinite(values).all():
                raise ValueError("some of its pixels are NaN or infinite")
            grey = np.rint(values.astype(np.float64) * (255 / levels.white))
        if levels.is_inverted:
            grey = 255 - grey
        return array_with_channels(grey.astype(np.uint8)[None], len(mode), "")
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")  # converting to RGB directly makes Pillow warn
    if image.mode != mode:
        image = image.convert(mode)
    pixels = np.array(image)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def array_with_channels(pixels: PixelArray, channels: int, name: str) -> PixelArray:
    """Converts between grey, RGB and RGBA; added opacity is full."""
    given = len(pixels)
    if given == channels:
        return pixels
    if channels == 1 and given in (3, 4):
        weights = np.array(_LUMA, np.float32)[:, None, None]
        grey = (pixels[:3] * weights).sum(0, keepdims=True, dtype=np.float32)
        return np.rint(grey).astype(np.uint8)
    if given == 4 and channels == 3:
        return pixels[:3]
    if given == 1 and channels == 3:
        return np.repeat(pixels, 3, axis=0)
    if channels == 4 and given in (1, 3):
        opaque = np.full_like(pixels[:1], 255)
        return np.concatenate([np.repeat(pixels, 3 // given, axis=0), opaque])
    raise UserError(
        f"{name or 'An image'} has {given} channels, which cannot become {channels}."
    )
