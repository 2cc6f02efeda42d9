"""Small pictures of a source's images."""

from collections.abc import Iterable

import numpy as np
from PIL import Image

from t2t.data.decoding.damage import DamagedImage
from t2t.data.decoding.decode import decode
from t2t.data.sources import Source

SIDE = 128
"""The longer side of a picture, in pixels; smaller images stay as they are."""


def thumbnails(source: Source, indices: Iterable[int]) -> dict[int, Image.Image | None]:
    """A picture of each of these images; None for those that cannot be read."""
    # In their order, in which files of many images are read fastest.
    return {index: thumbnail(source, index) for index in sorted(set(indices))}


def thumbnail(source: Source, index: int) -> Image.Image | None:
    """A picture of an image; None if it cannot be read."""
    try:
        pixels = decode(source.read(index), name=source.name(index), min_side=SIDE)
    except DamagedImage:
        return None
    picture = Image.fromarray(np.ascontiguousarray(pixels.permute(1, 2, 0).numpy()))
    if max(picture.size) > SIDE:
        picture.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    grey = picture.convert("L")
    return grey if grey.convert("RGB").tobytes() == picture.tobytes() else picture
