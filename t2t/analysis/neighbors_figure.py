"""A figure of images with their nearest images."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from t2t.analysis.figure import as_picture, save_figure, shortened
from t2t.shapes import Pixels

PANEL_INCHES = 1.6


@dataclass(frozen=True)
class CaptionedImage:
    """An image as the model sees it, with two lines below or above."""

    pixels: Pixels
    """One image, before normalisation."""
    title: str
    subtitle: str = ""


def draw_neighbors(
    rows: Sequence[tuple[CaptionedImage, Sequence[CaptionedImage]]],
    path: str | Path,
    title: str,
) -> Path:
    """Draw each image in a row with its nearest ones, nearest first."""
    num = 1 + max(len(nearest) for _, nearest in rows)
    width, height = PANEL_INCHES * (num + 0.3), (PANEL_INCHES + 0.45) * len(rows) + 0.5
    figure = Figure(figsize=(max(width, 6.0), height), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(
        len(rows), num + 1, squeeze=False, width_ratios=[1, 0.12, *(num - 1) * [1]]
    )
    for (image, nearest), panels in zip(rows, grid, strict=True):
        for axes in panels:
            axes.set_axis_off()
        draw_image(panels[0], image)
        for axes, each in zip(panels[2:], nearest, strict=False):
            draw_image(axes, each)
    figure.suptitle(shortened(title, 100), fontsize=11, parse_math=False)
    return save_figure(figure, path, dpi=120)


def draw_image(axes: Any, image: CaptionedImage) -> None:
    """Draw one image under its two lines of text."""
    axes.imshow(as_picture(image.pixels))
    text = f"{shortened(image.title, 20)}\n{shortened(image.subtitle, 20)}"
    axes.set_title(text.rstrip("\n"), fontsize=8, parse_math=False)
