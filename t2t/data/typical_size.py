"""The usual size of the images of a source."""

import numpy as np

from t2t.data.decoding.damage import DamagedImage
from t2t.data.decoding.decode import image_size
from t2t.data.sources import Source

NUM_SAMPLED = 16


def typical_side(source: Source) -> int:
    """The median of the short sides of a few images; 0 if none can be read."""
    chosen = np.linspace(0, len(source) - 1, min(NUM_SAMPLED, len(source)))
    sides = [min(_size(source, int(index))) for index in chosen]
    known = [side for side in sides if side]
    return int(np.median(known)) if known else 0


def _size(source: Source, index: int) -> tuple[int, int]:
    """Height and width from an image's header; 0 if it is damaged."""
    try:
        data = source.read(index)
    except DamagedImage:
        return 0, 0
    if isinstance(data, bytes):
        return image_size(data)
    _, height, width = data.shape
    return height, width
