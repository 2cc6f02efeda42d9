"""The figures of a look: panels of maps and charts, each with its legend."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from t2t.analysis.attention_rollout import shared_pca_colours
from t2t.analysis.confusion_figure import shortened
from t2t.analysis.feature_maps import DEAD_BELOW, ChannelStatistics
from t2t.analysis.first_layer import FirstFilters, PositionMaps
from t2t.shapes import Pixels
from t2t.visualize.look import HeadMaps, ImageLook, ModelLook
from t2t.visualize.montage import Row, Scale, compose

INK = "#010203"
"""Text and axes; a page replaces it by the colour of its own text."""
COLOURS = ("#3b82f6", "#f97316", "#10b981", "#e11d48", "#8b5cf6", "#a16207")
DEAD, OUTSIZED = "#e11d48", "#f59e0b"
"""Frames of dead and of outsized channels."""
PIXELS_PER_INCH = 110
FILTERS_SHOWN = 64


def draw_splits(images: Sequence[ImageLook]) -> Figure:
    """The tokens after each split, a row per image; a column shares its colours."""
    splits = [each.splits for each in images]
    columns = [
        shared_pca_colours(torch.stack([layer.values for layer in of_layer]))
        for of_layer in zip(*splits, strict=True)
    ]
    height, width = images[0].pixels.shape[-2:]
    panel = 1.35
    size = (panel * (1 + len(columns)), len(images) * (panel * height / width + 0.1))
    figure = new_figure(size[0], size[1] + 0.35)
    axes = figure.subplots(len(images), 1 + len(columns), squeeze=False)
    for number, image in enumerate(images):
        axes[number, 0].imshow(picture_of(image.pixels), interpolation="none")
        axes[number, 0].set_ylabel(shortened(image.name, 20), fontsize=7, color=INK)
        for panel_axes, colours in zip(axes[number, 1:], columns, strict=True):
            panel_axes.imshow(
                colours[number].numpy(),
                interpolation="none",
                extent=(0, width, height, 0),
            )
    set_title(axes[0, 0], f"input\n{height}×{width} px")
    for panel_axes, layer in zip(axes[0, 1:], splits[0], strict=True):
        set_title(panel_axes, f"{layer.name}\n{layer.grid[0]}×{layer.grid[1]}")
    for panel_axes in axes.flat:
        bare(panel_axes)
    return figure


def draw_features(image: ImageLook, channels: Sequence[ChannelStatistics]) -> Figure:
    """Channels of some layers in units of the layer's median channel."""
    by_name = {each.name: each for each in channels}
    rows = []
    for maps in image.features:
        found = by_name.get(maps.name)
        if found is None:
            continue
        typical = found.std.median().clamp(min=1e-30)
        centre = maps.values.mean((1, 2), keepdim=True)
        if found.std.median() == 0:  # more than half of the channels are dead
            typical = found.std.max().clamp(min=1e-30)
        values = (maps.values - centre) / typical
        marked = {}
        for place, channel in enumerate(maps.channels):
            if found.outsized[channel]:
                marked[place] = OUTSIZED
            if found.dead[channel]:
                marked[place] = DEAD
        rows.append(Row(name=maps.name, panels=values, marked=marked))
    scale = Scale(
        -3,
        3,
        "RdBu_r",
        "difference from the channel's mean, in units of the median std",
    )
    return draw_montage(rows, scale, aspect_of(image.pixels), "channel, evenly spaced")


def draw_heads(layers: Sequence[HeadMaps], kind: str, aspect: float) -> Figure:
    """Where every head of every layer looks; `kind` is from_output or from_middle."""
    rows = [Row(name=each.name, panels=getattr(each, kind)) for each in layers]
    scale = Scale(0, HEADS_UP_TO, "inferno", "attention, relative to the mean")
    return draw_montage(rows, scale, aspect, "head")


HEADS_UP_TO = 6.0
"""The brightest colour in pictures of heads: this many times the mean attention."""
ROLLOUT_UP_TO = 3.0
"""The same for rollouts, which are smoother."""


def draw_montage(
    rows: Sequence[Row], scale: Scale, aspect: float, across: str
) -> Figure:
    """Rows of panels with a colour bar."""
    montage = compose(rows, scale, aspect)
    height, width = montage.pixels.shape[:2]
    inches = max(width / 96, 2.6)
    figure = new_figure(inches + 1.2, inches * height / width + 0.95)
    axes = figure.subplots()
    axes.imshow(montage.pixels, interpolation="none")
    for left, top, wide, high, colour in montage.frames:
        box = Rectangle((left, top), wide, high, fill=False, edgecolor=colour, lw=1.8)
        axes.add_patch(box)
    axes.set_yticks(montage.centres, [row.name for row in rows], fontsize=7)
    shown = montage.columns if len(montage.columns) <= 16 else montage.columns[::2]
    numbers = range(1, len(montage.columns) + 1, len(montage.columns) // len(shown))
    axes.set_xticks(shown, [str(each) for each in [*numbers][: len(shown)]], fontsize=7)
    axes.set_xlabel(across, fontsize=7)
    axes.tick_params(length=0)
    for edge in axes.spines.values():
        edge.set_visible(False)
    add_legend(figure, axes, scale)
    return ink(figure)


def draw_rollouts(images: Sequence[ImageLook]) -> Figure:
    """Rollouts over the images, a row for each, by depth."""
    names = [name for name, _ in images[0].rollouts]
    height, width = images[0].pixels.shape[-2:]
    panel = 1.35
    high = len(images) * (panel * height / width + 0.1) + 0.35
    figure = new_figure(panel * (1 + len(names)) + 0.4, high)
    axes = figure.subplots(len(images), 1 + len(names), squeeze=False)
    extent = (0, width, height, 0)
    for number, image in enumerate(images):
        colours = picture_of(image.pixels)
        grey = colours.mean(-1)
        axes[number, 0].imshow(colours, interpolation="none", extent=extent)
        axes[number, 0].set_ylabel(shortened(image.name, 20), fontsize=7)
        for panel_axes, (_, found) in zip(
            axes[number, 1:], image.rollouts, strict=True
        ):
            panel_axes.imshow(
                grey, cmap="gray", vmin=0, vmax=255, extent=extent, interpolation="none"
            )
            panel_axes.imshow(
                found.numpy(),
                cmap="inferno",
                vmin=0,
                vmax=ROLLOUT_UP_TO,
                alpha=0.65,
                extent=extent,
                interpolation="none",
            )
    for panel_axes, name in zip(axes[0], ["input", *names], strict=True):
        set_title(panel_axes, name)
    for panel_axes in axes.flat:
        bare(panel_axes)
    scale = Scale(0, ROLLOUT_UP_TO, "inferno", "relative to the mean")
    add_legend(figure, axes, scale)
    return ink(figure)


def draw_distances(models: Sequence[ModelLook]) -> Figure:
    """A dot per head: how far it looks, by layer; a panel per model."""
    shown = [each for each in models if each.distances]
    figure = new_figure(max(3.4 * len(shown), 4.6), 3.0)
    panels = figure.subplots(1, len(shown), squeeze=False)[0]
    is_shared = len({each.image_size for each in shown}) == 1
    highest = max(max((*d.heads, d.uniform)) for m in shown for d in m.distances)
    for axes, model, colour in zip(panels, shown, COLOURS * 9, strict=False):
        for place, layer in enumerate(model.distances):
            heads = layer.heads
            axes.plot([place] * len(heads), heads, "o", ms=3.5, color=colour, alpha=0.7)
        names = [short_layer(each.name) for each in model.distances]
        uniform = [each.uniform for each in model.distances]
        axes.plot(uniform, "--", lw=0.9, color=INK, label="all tokens alike")
        means = [sum(each.heads) / len(each.heads) for each in model.distances]
        axes.plot(means, "-", lw=1.2, color=colour, label="mean of the heads")
        axes.set_xticks(range(len(names)), names, fontsize=6)
        set_title(axes, shortened(model.title, 44))
        axes.set_ylim(0, 1.08 * highest if is_shared else None)
        axes.set_xlabel("layer (t: token transformer)", fontsize=7)
        axes.legend(fontsize=6, frameon=False, labelcolor=INK)
    panels[0].set_ylabel("mean attention distance, pixels", fontsize=7)
    return ink(figure)


def draw_dead(models: Sequence[ModelLook]) -> Figure:
    """The share of dead channels by layer, and how much the channels vary."""
    figure = new_figure(7.2, 2.9)
    left, right = figure.subplots(1, 2)
    for model, colour in zip(models, COLOURS * 9, strict=False):
        share = [100 * float(each.dead.float().mean()) for each in model.channels]
        depth = np.linspace(0, 100, len(share))
        title = shortened(model.title, 40)
        left.plot(depth, share, "o-", ms=3.5, lw=1.2, color=colour, label=title)
        for each in model.channels:
            std = each.relative_std.sort().values.clamp(min=1e-4).numpy()
            ranks = np.linspace(0, 100, len(std))
            right.semilogy(ranks, std, lw=0.7, alpha=0.6, color=colour)
    left.set_xlabel("layer: % of the way from first to last", fontsize=7)
    left.set_ylabel("dead channels, %", fontsize=7)
    left.set_ylim(bottom=0, top=max(1.0, 1.1 * left.get_ylim()[1]))
    left.legend(fontsize=6, frameon=False, labelcolor=INK)
    right.axhline(DEAD_BELOW, ls="--", lw=0.9, color=DEAD)
    right.text(100, DEAD_BELOW, "dead ", fontsize=6, color=DEAD, ha="right", va="top")
    right.set_xlabel("channels of a layer, least varying first, %", fontsize=7)
    right.set_ylabel("std / std of the median channel", fontsize=7)
    return ink(figure)


def draw_norms(models: Sequence[ModelLook]) -> Figure:
    """The lengths of tokens by layer: mean, and 5th to 95th percentile."""
    figure = new_figure(5.2, 2.9)
    axes = figure.subplots()
    for model, colour in zip(models, COLOURS * 9, strict=False):
        depth = np.linspace(0, 100, len(model.norms))
        mean = [each.mean for each in model.norms]
        low, high = (
            [getattr(each, k) for each in model.norms] for k in ("low", "high")
        )
        title = shortened(model.title, 44)
        axes.fill_between(depth, low, high, color=colour, alpha=0.18, lw=0)
        axes.plot(depth, mean, "o-", ms=3, lw=1.2, color=colour, label=title)
        first = [
            (d, n.prefix[0])
            for d, n in zip(depth, model.norms, strict=True)
            if n.prefix
        ]
        if first:
            label = f"{shortened(model.title, 30)}: class token"
            axes.plot(*zip(*first, strict=True), ":", lw=1.2, color=colour, label=label)
    axes.set_yscale("log")
    axes.set_xlabel("layer: % of the way from first to last", fontsize=7)
    axes.set_ylabel("L2 norm of tokens", fontsize=7)
    axes.legend(fontsize=6, frameon=False, labelcolor=INK)
    return ink(figure)


def draw_positions(positions: PositionMaps) -> Figure:
    """Similarities as a grid of maps, one for each token; or a bias for each head."""
    values = positions.values
    rows, columns = values.shape[2:]
    if positions.is_bias:
        limit = max(float(values.abs().max()), 1e-6)
        scale = Scale(-limit, limit, "RdBu_r", "bias")
        row = Row(name="bias", panels=values[0])
        return draw_montage([row], scale, rows / columns, "head")
    scale = Scale(-1, 1, "RdBu_r", "cosine similarity")
    labels = [f"row {number + 1}" for number in range(len(values))]
    named = [
        Row(name=label, panels=row) for label, row in zip(labels, values, strict=True)
    ]
    return draw_montage(named, scale, rows / columns, "column")


def draw_filters(filters: FirstFilters) -> Figure:
    """The filters of the largest norm, with one scale around grey."""
    values = filters.values
    largest = values.flatten(1).norm(dim=1).argsort(descending=True)[:FILTERS_SHOWN]
    values = values[largest]
    if values.shape[1] != 3:
        values = values.mean(1, keepdim=True).expand(-1, 3, -1, -1)
    limit = values.abs().flatten().quantile(0.99).clamp(min=1e-12)
    painted = (0.5 + 0.5 * values / limit).clamp(0, 1).permute(0, 2, 3, 1).numpy()
    columns = min(16, len(painted))
    rows = -(-len(painted) // columns)
    _, height, width, _ = painted.shape
    canvas = np.zeros((rows * (height + 1) - 1, columns * (width + 1) - 1, 4))
    for number, filter_ in enumerate(painted):
        top, left = (number // columns) * (height + 1), (number % columns) * (width + 1)
        canvas[top : top + height, left : left + width, :3] = filter_
        canvas[top : top + height, left : left + width, 3] = 1
    figure = new_figure(5.2, 5.2 * canvas.shape[0] / canvas.shape[1] + 0.1)
    axes = figure.subplots()
    axes.imshow(canvas, interpolation="none")
    bare(axes)
    return ink(figure)


def new_figure(width: float, height: float) -> Figure:
    """An empty figure, in inches."""
    figure = Figure(figsize=(width, height), layout="constrained", dpi=PIXELS_PER_INCH)
    FigureCanvasAgg(figure)
    return figure


def add_legend(figure: Figure, axes: Any, scale: Scale) -> None:
    """A colour bar with what its ends mean."""
    mappable = ScalarMappable(Normalize(scale.low, scale.high), scale.colormap)
    bar = figure.colorbar(mappable, ax=axes, fraction=0.03, pad=0.015, aspect=30)
    bar.set_label(scale.label, fontsize=6, color=INK)
    bar.ax.tick_params(labelsize=6, color=INK, labelcolor=INK)
    bar.outline.set_visible(False)  # type: ignore[operator]


def ink(figure: Figure) -> Figure:
    """Text and axes in the colour that a page replaces by its own."""
    for axes in figure.axes:
        axes.tick_params(colors=INK, labelsize=6)
        axes.xaxis.label.set_color(INK)
        axes.yaxis.label.set_color(INK)
        axes.title.set_color(INK)
        axes.patch.set_alpha(0)
        for name, edge in axes.spines.items():
            edge.set_color(INK)
            edge.set_linewidth(0.6)
            if name in ("top", "right"):
                edge.set_visible(False)
    figure.patch.set_alpha(0)
    return figure


def bare(axes: Any) -> None:
    """Removes ticks and edges."""
    axes.set_xticks([])
    axes.set_yticks([])
    for edge in axes.spines.values():
        edge.set_visible(False)


def set_title(axes: Any, text: str) -> None:
    """A panel's title."""
    axes.set_title(text, fontsize=7, color=INK, parse_math=False)


def picture_of(pixels: Pixels) -> np.ndarray:
    """An image with channels last, in colour."""
    picture = np.moveaxis(pixels[0].cpu().numpy(), 0, -1)
    return (
        picture[..., :3] if picture.shape[-1] >= 3 else picture[..., :1].repeat(3, -1)
    )


def aspect_of(pixels: Tensor) -> float:
    """Height over width."""
    return pixels.shape[-2] / pixels.shape[-1]


def short_layer(name: str) -> str:
    """`block 3` as 3 and `token transformer 1` as t1."""
    number = name.split()[-1]
    return f"t{number}" if name.startswith("token") else number
