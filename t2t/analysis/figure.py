"""What the figures share: pictures, short names, and the file of a figure."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from matplotlib.figure import Figure

from t2t.atomic import atomic_file
from t2t.errors import UserError, on_one_line
from t2t.shapes import Pixels

_MAX_NAME_LENGTH = 24


def save_figure(
    figure: Figure, path: str | Path, dpi: float, software: str | None = None
) -> Path:
    """Writes a figure in the format of the file's suffix, by default PNG.

    A PNG also says which software drew it, if that is given.
    """
    file = Path(path).expanduser()
    file = file if file.suffix else file.with_suffix(".png")
    try:
        with atomic_file(file) as part:
            metadata = None if software is None else {"Software": software}
            kind = file.suffix[1:].lower()
            figure.savefig(part, dpi=dpi, format=kind, metadata=metadata)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(
            f"The picture {path} could not be written: {reason}."
        ) from error
    return file


def display_names(names: Sequence[str]) -> list[str]:
    """Short names: the first of several synonyms, if it is unique."""
    firsts = Counter(name.partition(",")[0] for name in names)
    shown = []
    for name in names:
        first = name.partition(",")[0]
        is_enough = len(name) > _MAX_NAME_LENGTH and firsts[first] == 1
        shown.append(shortened(first if is_enough else name, _MAX_NAME_LENGTH))
    return shown


def shortened(name: str, max_length: int) -> str:
    """A name of at most `max_length` characters; keeps its beginning and end."""
    shown = on_one_line(name)
    head, tail = max_length - max_length // 3 - 1, max_length // 3
    return shown if len(shown) <= max_length else f"{shown[:head]}…{shown[-tail:]}"


def as_picture(pixels: Pixels) -> UInt8[np.ndarray, "height width 3"]:
    """One image with its channels last, in grey unless it has three."""
    picture = np.moveaxis(pixels[0].cpu().numpy(), 0, -1)
    return picture if picture.shape[-1] == 3 else picture[..., :1].repeat(3, -1)
