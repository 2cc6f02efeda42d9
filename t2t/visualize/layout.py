"""Panels, labels and legends at positions in a figure, in points."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

INK = "#010203"
"""Text and axes; a page replaces it by the colour of its own text."""
FONT = 8.0
LETTER = 5.2
"""Width that is left for each letter of a label: pages have fonts of their own."""
LINE = 11.0
LEGEND_WIDTH = 150.0
LEGEND_HEIGHT = 6.0


@dataclass(frozen=True)
class ColourScale:
    """The values that the ends of a colour map stand for, and what they are."""

    low: float
    high: float
    colormap: str
    label: str


def new_figure(width: float, height: float) -> Figure:
    """An empty figure without a background, in points."""
    figure = Figure(figsize=(width / 72, height / 72))
    FigureCanvasAgg(figure)
    figure.patch.set_alpha(0)
    return figure


def axes_at(
    figure: Figure, left: float, top: float, width: float, height: float
) -> Any:
    """Axes of a size at a distance from the upper left corner, in points."""
    wide, high = (72 * inches for inches in figure.get_size_inches())
    box = (left / wide, 1 - (top + height) / high, width / wide, height / high)
    return figure.add_axes(box)


def panels(
    columns: Sequence[str],
    rows: Sequence[str],
    size: tuple[float, float],
    scale: ColourScale | None = None,
) -> tuple[Figure, list[list[Any]]]:
    """A grid of panels (width, height) with titles above and labels at the left."""
    width, height = size
    gap = 6.0
    left = LETTER * max(map(len, rows)) + 4
    top = LINE * (1 + max(title.count("\n") for title in columns)) + 3
    high = top + len(rows) * (height + gap) + (2.6 * LINE if scale else 0)
    wide = left + len(columns) * (width + gap)
    figure = new_figure(max(wide, LEGEND_WIDTH + 20 if scale else 0), high)
    grid = []
    for number, row in enumerate(rows):
        y = top + number * (height + gap)
        line = [
            bare(axes_at(figure, left + column * (width + gap), y, width, height))
            for column in range(len(columns))
        ]
        line[0].set_ylabel(
            row,
            rotation=0,
            ha="right",
            va="center",
            fontsize=FONT,
            color=INK,
            parse_math=False,
        )
        grid.append(line)
    for axes, title in zip(grid[0], columns, strict=True):
        axes.set_title(title, fontsize=FONT, color=INK, pad=3, parse_math=False)
    if scale is not None:
        add_legend(figure, left, high - 2.3 * LINE, scale)
    return figure, grid


def add_legend(figure: Figure, left: float, top: float, scale: ColourScale) -> None:
    """A horizontal colour bar with what it stands for."""
    axes = axes_at(figure, left, top, LEGEND_WIDTH, LEGEND_HEIGHT)
    mappable = ScalarMappable(Normalize(scale.low, scale.high), scale.colormap)
    bar = figure.colorbar(mappable, cax=axes, orientation="horizontal")
    bar.outline.set_visible(False)
    bar.set_ticks([scale.low, (scale.low + scale.high) / 2, scale.high])
    axes.tick_params(length=0, labelsize=FONT - 1, labelcolor=INK, pad=2)
    axes.text(
        1.06,
        0.5,
        scale.label,
        transform=axes.transAxes,
        fontsize=FONT - 1,
        color=INK,
        va="center",
    )


def bare(axes: Any) -> Any:
    """Axes without ticks, edges and background."""
    axes.set_xticks([])
    axes.set_yticks([])
    axes.patch.set_alpha(0)
    for edge in axes.spines.values():
        edge.set_visible(False)
    return axes


def chart(
    figure: Figure, box: tuple[float, float, float, float], x: str, y: str
) -> Any:
    """Axes of a chart (left, top, width, height) with labels."""
    axes = axes_at(figure, *box)
    axes.patch.set_alpha(0)
    axes.set_xlabel(x, fontsize=FONT, color=INK)
    axes.set_ylabel(y, fontsize=FONT, color=INK)
    axes.tick_params(colors=INK, labelsize=FONT - 1)
    axes.tick_params(which="minor", length=0)
    for name, edge in axes.spines.items():
        edge.set_color(INK)
        edge.set_linewidth(0.6)
        edge.set_visible(name in ("left", "bottom"))
    return axes


def add_key(axes: Any) -> None:
    """A legend of the lines of a chart, above it."""
    legend = axes.legend(
        fontsize=FONT - 1,
        frameon=False,
        labelcolor=INK,
        loc="lower left",
        bbox_to_anchor=(0, 1),
        borderaxespad=0.3,
    )
    for text in legend.get_texts():
        text.set_parse_math(False)
