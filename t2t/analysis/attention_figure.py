"""A figure of the evidence for each prediction: tokens, attention and occlusion."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from t2t.analysis.attention_maps import Map
from t2t.analysis.explain import Explanation
from t2t.analysis.figure import as_picture, save_figure, shortened
from t2t.shapes import Pixels

PANEL_INCHES = 2.3


@dataclass(frozen=True, kw_only=True)
class ExplainedImage:
    """An image, its predicted class and the evidence for it."""

    name: str
    pixels: Pixels
    """The model's input before normalisation, one image."""
    class_name: str
    probability: float
    explanation: Explanation


def draw_explanations(
    images: Sequence[ExplainedImage], path: str | Path, title: str
) -> Path:
    """Draw a row of panels per image."""
    first = images[0].explanation
    num_panels = 2 + len(first.tokens) + (first.attention is not None)
    size = (PANEL_INCHES * num_panels, (PANEL_INCHES + 0.4) * len(images) + 0.4)
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    rows = figure.subplots(len(images), num_panels, squeeze=False)
    for image, axes in zip(images, rows, strict=True):
        draw_row(image, list(axes))
    figure.suptitle(shortened(title, 100), fontsize=11, parse_math=False)
    return save_figure(figure, path, dpi=110)


def draw_row(image: ExplainedImage, panels: list[Any]) -> None:
    """Draw the panels of one image."""
    picture = as_picture(image.pixels)
    explanation = image.explanation
    class_name = shortened(image.class_name, 18)
    height, width = picture.shape[:2]
    panel = iter(panels)
    axes = next(panel)
    axes.imshow(picture)
    prediction = f"{class_name} {100 * image.probability:.1f} %"
    set_title(axes, f"{shortened(image.name, 26)}\n{prediction}")
    for name, tokens in explanation.tokens:
        axes = next(panel)
        axes.imshow(tokens.numpy())
        set_title(axes, f"tokens {name}\n{tokens.shape[0]} × {tokens.shape[1]}")
    grey = picture.mean(-1)
    if explanation.attention is not None:
        axes = next(panel)
        overlay(axes, grey, explanation.attention, (0, None), "inferno")
        highest = float(explanation.attention.max())
        set_title(axes, f"attention rollout\nup to {highest:.1f} × the mean")
    axes = next(panel)
    occlusion = explanation.occlusion
    limit = max(float(occlusion.abs().max()), 1e-6)
    overlay(axes, grey, occlusion, (-limit, limit), "RdBu_r")
    cost = max(float(occlusion.max()), 0.0)
    set_title(
        axes, f"evidence for {class_name}\nhiding it costs up to {cost:.1f} points"
    )
    for axes in panels:
        axes.set_box_aspect(height / width)


def overlay(
    axes: Any,
    grey: np.ndarray,
    values: Map,
    limits: tuple[float, float | None],
    colormap: str,
) -> None:
    """Draw a map in colours over the grey image."""
    height, width = grey.shape
    extent = (-0.5, width - 0.5, height - 0.5, -0.5)
    axes.imshow(grey, cmap="gray", vmin=0, vmax=255, extent=extent)
    low, high = limits
    axes.imshow(
        values.numpy(), cmap=colormap, vmin=low, vmax=high, alpha=0.6, extent=extent
    )


def set_title(axes: Any, text: str) -> None:
    """Set a panel's title and remove its ticks."""
    axes.set_title(text, fontsize=8, parse_math=False)
    axes.set_xticks([])
    axes.set_yticks([])
