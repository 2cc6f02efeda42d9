"""The picture of what a model sees in images: a row for each."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from t2t.analysis.attention_rollout import Map, Sight
from t2t.analysis.pictures import save_figure, shortened
from t2t.shapes import Pixels

SIDE = 2.3
"""Inches of a panel."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """An image, what it is taken for, and what the model makes of it."""

    name: str
    pixels: Pixels
    """As the model is shown it, one image."""
    guess: str
    probability: float
    sight: Sight


def draw_sights(seen: Sequence[Seen], path: str | Path, title: str) -> Path:
    """The images side by side with their tokens, attention and what they need."""
    first = seen[0].sight
    num_panels = 2 + len(first.tokens) + (first.attention is not None)
    size = (SIDE * num_panels, (SIDE + 0.4) * len(seen) + 0.4)
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    rows = figure.subplots(len(seen), num_panels, squeeze=False)
    for each, axes in zip(seen, rows, strict=True):
        draw_row(each, list(axes))
    figure.suptitle(shortened(title, 100), fontsize=11, parse_math=False)
    return save_figure(figure, path, dpi=110)


def draw_row(seen: Seen, panels: list[Any]) -> None:
    """One image."""
    picture = np.moveaxis(seen.pixels[0].cpu().numpy(), 0, -1)
    picture = picture if picture.shape[-1] == 3 else picture[..., :1].repeat(3, -1)
    sight = seen.sight
    guess = shortened(seen.guess, 18)
    height, width = picture.shape[:2]
    panel = iter(panels)
    axes = next(panel)
    axes.imshow(picture)
    told = f"{shortened(seen.name, 26)}\n{guess} {100 * seen.probability:.1f} %"
    label(axes, told)
    for name, tokens in sight.tokens:
        axes = next(panel)
        axes.imshow(tokens.numpy())
        label(axes, f"tokens {name}\n{tokens.shape[0]} × {tokens.shape[1]}")
    grey = picture.mean(-1)
    if sight.attention is not None:
        axes = next(panel)
        lay_over(axes, grey, sight.attention, (0, None), "inferno")
        most = float(sight.attention.max())
        label(axes, f"where it looks\nat most {most:.1f} × an equal share")
    axes = next(panel)
    most = max(float(sight.needs.abs().max()), 1e-6)
    lay_over(axes, grey, sight.needs, (-most, most), "RdBu_r")
    lost = max(float(sight.needs.max()), 0.0)
    label(axes, f"what {guess} needs\nhidden, it loses up to {lost:.1f} points")
    for axes in panels:
        axes.set_box_aspect(height / width)


def lay_over(
    axes: Any, grey: np.ndarray, shown: Map, limits: tuple[float, float | None], by: str
) -> None:
    """A map in colours over the image in grey."""
    height, width = grey.shape
    extent = (-0.5, width - 0.5, height - 0.5, -0.5)
    axes.imshow(grey, cmap="gray", vmin=0, vmax=255, extent=extent)
    low, high = limits
    axes.imshow(shown.numpy(), cmap=by, vmin=low, vmax=high, alpha=0.6, extent=extent)


def label(axes: Any, text: str) -> None:
    """A panel's title, and no ticks."""
    axes.set_title(text, fontsize=8, parse_math=False)
    axes.set_xticks([])
    axes.set_yticks([])
