"""Pixels of Pillow's many modes as 8 bits a channel."""

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image
from torch import Tensor

from t2t.errors import UserError

ImagePixels = UInt8[Tensor, "channels height width"]

_LUMA = (0.299, 0.587, 0.114)
_SINGLE = ("F", "I;16", "I;16L", "I;16B", "I;16N", "I")
_BITS_PER_SAMPLE = 258


def with_channels(pixels: ImagePixels, channels: int, name: str = "") -> ImagePixels:
    """Grey repeated, colour made grey, opacity dropped or added, as `channels` asks."""
    given = pixels.shape[0]
    if given == channels:
        return pixels
    if channels == 1 and given in (3, 4):
        weights = torch.tensor(_LUMA, device=pixels.device).view(3, 1, 1)
        return (pixels[:3] * weights).sum(0, keepdim=True).round().to(torch.uint8)
    if given == 1 and channels == 3:
        return pixels.expand(3, -1, -1).contiguous()
    if given == 4 and channels == 3:
        return pixels[:3].contiguous()
    if channels == 4 and given in (1, 3):
        opaque = torch.full_like(pixels[:1], 255)
        return torch.cat([pixels.expand(3, -1, -1), opaque])
    raise UserError(
        f"{name or 'An image'} has {given} channels, which cannot become {channels}."
    )


def white_level(image: Image.Image) -> float | None:
    """The value that stands for white where a pixel is one wide number, else None.

    Files of 16 bits say it. 32 bits and floating point do not: there it is the
    smallest of the usual ones that no pixel exceeds.
    """
    if image.mode not in _SINGLE:
        return None
    # Pillow reads 16-bit images of other formats as "I", at the full range.
    is_free = image.mode == "F" or (
        image.mode == "I" and image.format in (None, "TIFF")
    )
    if not is_free:
        return float((1 << _bits(image)) - 1)
    low, high = image.getextrema()
    assert isinstance(low, int | float)
    assert isinstance(high, int | float)
    usual = (1.0, 255.0, 65535.0) if image.mode == "F" else (255.0, 65535.0)
    white = next((each for each in usual if high <= each), None)
    if white is None or low < 0:
        kind = "floating point" if image.mode == "F" else "32-bit"
        known = ", ".join(f"0 to {each:.0f}" for each in usual)
        raise ValueError(
            f"its {kind} pixels range from {low:g} to {high:g}, which is none of "
            f"{known}: store 8 or 16 bits"
        )
    return white


def _bits(image: Image.Image) -> int:
    """Bits of a pixel that is one wide number: 12 or 16."""
    tags = getattr(image, "tag_v2", {})
    (bits, *_) = tags.get(_BITS_PER_SAMPLE, (16,))
    return 12 if bits == 12 else 16


def pixels_of(image: Image.Image, mode: str, white: float | None) -> ImagePixels:
    """An image or a part of one; `white` is the whole one's `white_level`."""
    if white is not None:
        values = np.asarray(image)
        if white == 65535 and values.dtype.kind == "u":
            # 65535 becomes 255 exactly; the same as dividing by 257 and rounding.
            grey = (values.astype(np.uint32) + 128) // 257
        else:
            if not np.isfinite(values).all():
                raise ValueError("some of its pixels are no numbers")
            grey = np.rint(values.astype(np.float64) * (255 / white))
        return with_channels(torch.from_numpy(grey.astype(np.uint8))[None], len(mode))
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")  # else Pillow warns on the way to RGB
    if image.mode != mode:
        image = image.convert(mode)
    pixels = torch.from_numpy(np.array(image))
    if pixels.ndim == 2:
        return pixels[None]
    return pixels.permute(2, 0, 1)
