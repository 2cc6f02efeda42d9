"""Many small maps in one picture: rows of panels with one colour scale."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float, UInt8
from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor
from torch.nn.functional import interpolate

from t2t.visualize.layout import (
    FONT,
    INK,
    LETTER,
    LINE,
    ColourScale,
    add_legend,
    axes_at,
    bare,
    new_figure,
)

CELLS = (30, 60)
"""Pixels along the shorter side of a panel: fewer for more panels in a row."""
WIDTH = 440
"""Pixels that a row should not exceed; a pixel is shown as 0.75 points."""
GAP = 3
POINTS = 0.75
NUM_COLOURS = 200
"""So few that a picture and its background fit into the palette of a PNG."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """Panels side by side, all of one size."""

    name: str
    panels: Float[Tensor, "panels rows columns"]
    frames: dict[int, str] = field(default_factory=dict)
    """Colours of the frames around some panels."""


def panel_size(rows: Sequence[Row], aspect: float) -> tuple[int, int]:
    """Height and width in pixels, for images of this height over width."""
    aspect = min(max(aspect, 0.25), 4.0)
    widest = max(len(row.panels) for row in rows)
    fitting = (WIDTH / widest - GAP) * min(aspect, 1)
    cell = min(max(fitting, CELLS[0]), CELLS[1])
    return round(cell * max(aspect, 1)), round(cell * max(1 / aspect, 1))


def paint(
    rows: Sequence[Row], scale: ColourScale, aspect: float
) -> UInt8[np.ndarray, "height width 4"]:
    """All panels in one picture, transparent between them."""
    height, width = panel_size(rows, aspect)
    num_columns = max(len(row.panels) for row in rows)
    shape = (len(rows) * (height + GAP) - GAP, num_columns * (width + GAP) - GAP, 4)
    canvas = np.zeros(shape, dtype=np.uint8)
    colormap = colormaps[scale.colormap].resampled(NUM_COLOURS)
    for number, row in enumerate(rows):
        # Tokens larger than pixels keep their edges; smaller ones are averaged.
        is_fine = row.panels.shape[1] > height and row.panels.shape[2] > width
        mode = "area" if is_fine else "nearest-exact"
        sized = interpolate(row.panels[:, None].float(), (height, width), mode=mode)
        values = (sized[:, 0].numpy() - scale.low) / (scale.high - scale.low)
        painted = (255 * colormap(values.clip(0, 1))).round().astype(np.uint8)
        top = number * (height + GAP)
        for column, panel in enumerate(painted):
            left = column * (width + GAP)
            canvas[top : top + height, left : left + width] = panel
    return canvas


def draw_montage(
    rows: Sequence[Row], scale: ColourScale, aspect: float, across: str
) -> Figure:
    """Rows of panels with their names, numbers and a legend."""
    pixels = paint(rows, scale, aspect)
    panel_height, panel_width = panel_size(rows, aspect)
    height, width = (POINTS * side for side in pixels.shape[:2])
    left = LETTER * max(len(row.name) for row in rows) + 4
    legend = left + 165 + 0.9 * LETTER * len(scale.label)
    high = 4 + height + 4.8 * LINE
    figure = new_figure(max(left + width + 6, legend), high)
    axes = bare(axes_at(figure, left, 4, width, height))
    axes.imshow(pixels, interpolation="none", aspect="auto")
    for number, row in enumerate(rows):
        top = number * (panel_height + GAP)
        for column, colour in row.frames.items():
            corner = (column * (panel_width + GAP) - 1.5, top - 1.5)
            size = (panel_width + 2.0, panel_height + 2.0)
            frame = Rectangle(
                corner, *size, fill=False, edgecolor=colour, lw=1.6, clip_on=False
            )
            axes.add_patch(frame)
    centres = [
        number * (panel_height + GAP) + panel_height / 2 for number in range(len(rows))
    ]
    axes.set_yticks(centres, [row.name for row in rows], fontsize=FONT, color=INK)
    num_columns = max(len(row.panels) for row in rows)
    numbers = range(num_columns)
    middles = [column * (panel_width + GAP) + panel_width / 2 for column in numbers]
    axes.set_xticks(
        middles, [str(number + 1) for number in numbers], fontsize=FONT - 1, color=INK
    )
    axes.set_xlabel(across, fontsize=FONT, color=INK)
    axes.tick_params(length=0, pad=3)
    add_legend(figure, left, high - 2.2 * LINE, scale)
    return figure
