"""Many small maps in one picture: rows of panels with one colour scale."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float, UInt8
from matplotlib import colormaps
from torch import Tensor
from torch.nn.functional import interpolate

Picture = UInt8[np.ndarray, "height width 4"]

CELL = 36
"""Pixels along the shorter side of a panel."""
GAP = 3


@dataclass(frozen=True)
class Scale:
    """The values that the ends of a colour map stand for, and what they are."""

    low: float
    high: float
    colormap: str
    label: str


@dataclass(frozen=True, kw_only=True)
class Row:
    """Panels side by side, all of one size."""

    name: str
    panels: Float[Tensor, "panels rows columns"]
    marked: dict[int, str] = field(default_factory=dict)
    """Panels with a frame, and its colour."""


@dataclass(frozen=True)
class Montage:
    """A picture of all panels, and where its rows and marked panels are."""

    pixels: Picture
    centres: list[float]
    """The vertical centre of each row."""
    columns: list[float]
    """The horizontal centre of each panel of the longest row."""
    frames: list[tuple[float, float, float, float, str]]
    """Left, top, width, height and colour."""


def compose(rows: Sequence[Row], scale: Scale, aspect: float) -> Montage:
    """Paints panels of equal size; `aspect` is the images' height over their width."""
    height, width = round(CELL * max(aspect, 1)), round(CELL * max(1 / aspect, 1))
    num_columns = max(len(row.panels) for row in rows)
    step_x, step_y = width + GAP, height + GAP
    shape = (len(rows) * step_y - GAP, num_columns * step_x - GAP, 4)
    canvas = np.zeros(shape, dtype=np.uint8)
    paint = colormaps[scale.colormap]
    frames = []
    for number, row in enumerate(rows):
        top = number * step_y
        sized = interpolate(row.panels[:, None].float(), (height, width), mode="area")
        if min(row.panels.shape[1:]) < CELL:  # tokens larger than pixels: sharp edges
            sized = interpolate(
                row.panels[:, None].float(), (height, width), mode="nearest-exact"
            )
        values = (sized[:, 0].numpy() - scale.low) / (scale.high - scale.low)
        painted = (255 * paint(values.clip(0, 1))).round().astype(np.uint8)
        for column, panel in enumerate(painted):
            left = column * step_x
            canvas[top : top + height, left : left + width] = panel
            if column in row.marked:
                box = (left - 1.5, top - 1.5, width + 2.0, height + 2.0)
                frames.append((*box, row.marked[column]))
    return Montage(
        pixels=canvas,
        centres=[number * step_y + (height - 1) / 2 for number in range(len(rows))],
        columns=[number * step_x + (width - 1) / 2 for number in range(num_columns)],
        frames=frames,
    )
