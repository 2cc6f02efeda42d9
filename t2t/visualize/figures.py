"""The figures of a look: panels of maps and charts, each with its legend."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

from t2t.analysis.feature_maps import DEAD_BELOW, ChannelStatistics
from t2t.analysis.figure import shortened
from t2t.analysis.first_layer import FirstFilters, PositionMaps
from t2t.analysis.token_maps import shared_pca_colours
from t2t.shapes import Pixels
from t2t.visualize.data import HeadMaps, ImageLook, ModelLook
from t2t.visualize.layout import (
    FONT,
    INK,
    LINE,
    ColourScale,
    add_key,
    axes_at,
    bare,
    chart,
    new_figure,
    panels,
)
from t2t.visualize.montage import Row, draw_montage

COLOURS = ("#3b82f6", "#f97316", "#10b981", "#e11d48", "#8b5cf6", "#a16207")
DEAD, OUTSIZED = "#e11d48", "#f59e0b"
"""Frames of dead and of outsized channels."""
PANEL = 84.0
"""Points along the shorter side of a panel with an image."""
MAX_PIXELS = 160
"""Larger images are shrunk to this many pixels along a side."""
FILTERS_SHOWN = 64
HEADS_UP_TO = 6.0
"""The brightest colour in pictures of heads: this many times the mean attention."""
ROLLOUT_UP_TO = 3.0
"""The same for rollouts, which are smoother."""


def draw_splits(images: Sequence[ImageLook]) -> Figure:
    """The tokens after each split, a row per image; a column shares its colours."""
    columns = [
        shared_pca_colours(torch.stack([layer.values for layer in of_layer]))
        for of_layer in zip(*(each.splits for each in images), strict=True)
    ]
    first = images[0]
    height, width = first.pixels.shape[-2:]
    titles = [f"input\n{height}×{width} px"]
    titles += [f"{each.name}\n{each.grid[0]}×{each.grid[1]}" for each in first.splits]
    size = image_panel(first.pixels)
    figure, grid = panels(titles, [shortened(each.name, 18) for each in images], size)
    for number, (image, line) in enumerate(zip(images, grid, strict=True)):
        show(line[0], picture_of(image.pixels))
        for axes, colours in zip(line[1:], columns, strict=True):
            show(axes, shrunk(colours[number].numpy()))
    return figure


def draw_features(image: ImageLook, channels: Sequence[ChannelStatistics]) -> Figure:
    """Channels of some layers, dead and outsized ones with a frame."""
    label = "in units of the median std"
    scale, aspect = ColourScale(-3, 3, "RdBu_r", label), aspect_of(image.pixels)
    rows = feature_rows(image, channels)
    return draw_montage(rows, scale, aspect, "channel, evenly spaced")


def feature_rows(image: ImageLook, channels: Sequence[ChannelStatistics]) -> list[Row]:
    """A row for each layer: differences from the mean, in its unit."""
    by_name = {each.name: each for each in channels}
    rows = []
    for maps in image.features:
        found = by_name.get(maps.name)
        if found is None:
            continue
        centre = maps.values.mean((1, 2), keepdim=True)
        values = (maps.values - centre) / found.unit
        frames = {}
        for panel, channel in enumerate(maps.channels):
            if found.outsized[channel]:
                frames[panel] = OUTSIZED
            if found.dead[channel]:
                frames[panel] = DEAD
        rows.append(Row(name=maps.name, panels=values, frames=frames))
    return rows


def draw_heads(layers: Sequence[HeadMaps], kind: str, aspect: float) -> Figure:
    """Where every head of every layer looks; `kind` is from_output or from_middle."""
    rows = [Row(name=each.name, panels=getattr(each, kind)) for each in layers]
    scale = ColourScale(0, HEADS_UP_TO, "inferno", "attention, relative to the mean")
    return draw_montage(rows, scale, aspect, "head")


def draw_rollouts(images: Sequence[ImageLook]) -> Figure:
    """Rollouts over the images, a row for each, by depth."""
    titles = ["input", *(name for name, _ in images[0].rollouts)]
    names = [shortened(each.name, 18) for each in images]
    scale = ColourScale(0, ROLLOUT_UP_TO, "inferno", "attention, relative to the mean")
    figure, grid = panels(titles, names, image_panel(images[0].pixels), scale)
    for image, line in zip(images, grid, strict=True):
        colours = picture_of(image.pixels)
        show(line[0], colours)
        for axes, (_, found) in zip(line[1:], image.rollouts, strict=True):
            show(axes, colours.mean(-1), cmap="gray", vmin=0, vmax=255)
            limits = {"vmin": scale.low, "vmax": scale.high}
            show(axes, found.numpy(), cmap=scale.colormap, alpha=0.65, **limits)
    return figure


def draw_distances(models: Sequence[ModelLook]) -> Figure:
    """A dot per head: how far it looks, by layer; a panel per model."""
    shown = [each for each in models if each.distances]
    figure = new_figure(60 + 290 * len(shown), 225)
    is_shared = len({each.image_size for each in shown}) == 1
    highest = max(max((*d.heads, d.uniform)) for m in shown for d in m.distances)
    for number, model in enumerate(shown):
        colour = COLOURS[number % len(COLOURS)]
        label = "mean attention distance, pixels" if number == 0 else ""
        box = (48 + 290 * number, 48, 250, 135)
        axes = chart(figure, box, "block (t: token transformer)", label)
        for x, layer in enumerate(model.distances):
            dots = dict.fromkeys(layer.heads)
            axes.plot([x] * len(dots), [*dots], "o", ms=3, color=colour, alpha=0.7)
        means = [sum(each.heads) / len(each.heads) for each in model.distances]
        title = shortened(model.title, 40)
        axes.plot(means, "-", lw=1.2, color=colour, label=f"{title}, mean of heads")
        uniform = [each.uniform for each in model.distances]
        axes.plot(uniform, "--", lw=0.9, color=INK, label="attention to all alike")
        names = [short_layer(each.name) for each in model.distances]
        axes.set_xticks(range(len(names)), names)
        top = highest if is_shared else axes.get_ylim()[1]
        axes.set_ylim(0, 1.06 * max(top, 1.0))
        add_key(axes)
    return figure


def draw_dead(models: Sequence[ModelLook]) -> Figure:
    """The share of dead channels by layer, and how much the channels vary."""
    key = LINE * len(models)
    figure = new_figure(640, 195 + key)
    across = "layer: % of the way from first to last"
    left = chart(figure, (48, 14 + key, 240, 140), across, "dead channels, %")
    across = "channels of a layer, least varying first, %"
    right = chart(figure, (362, 14 + key, 260, 140), across, "std / median channel's")
    for number, model in enumerate(models):
        colour = COLOURS[number % len(COLOURS)]
        share = [100 * float(each.dead.float().mean()) for each in model.channels]
        title = shortened(model.title, 48)
        left.plot(along(share), share, "o-", ms=3, lw=1.2, color=colour, label=title)
        for each in model.channels:
            std = each.relative_std.clamp(min=1e-4).numpy()
            std = np.quantile(std, np.linspace(0, 1, min(len(std), 65)))
            right.semilogy(along(std), std, lw=0.7, alpha=0.6, color=colour)
    left.set_ylim(0, max(1.0, 1.1 * left.get_ylim()[1]))
    add_key(left)
    right.axhline(DEAD_BELOW, ls="--", lw=0.9, color=DEAD)
    right.text(
        100, DEAD_BELOW, "dead", fontsize=FONT - 1, color=DEAD, ha="right", va="bottom"
    )
    return figure


def draw_norms(models: Sequence[ModelLook]) -> Figure:
    """The lengths of tokens by layer: mean, and 5th to 95th percentile."""
    with_prefix = [any(each.prefix for each in model.norms) for model in models]
    key = LINE * (len(models) + sum(with_prefix))
    figure = new_figure(420, 195 + key)
    across = "layer: % of the way from first to last"
    axes = chart(figure, (52, 14 + key, 340, 140), across, "L2 norm of tokens")
    for number, model in enumerate(models):
        colour = COLOURS[number % len(COLOURS)]
        depth = along(model.norms)
        low, high = [e.low for e in model.norms], [e.high for e in model.norms]
        axes.fill_between(depth, low, high, color=colour, alpha=0.18, lw=0)
        title, mean = shortened(model.title, 48), [each.mean for each in model.norms]
        axes.plot(depth, mean, "o-", ms=3, lw=1.2, color=colour, label=title)
        if with_prefix[number]:
            first = [each.prefix[0] if each.prefix else np.nan for each in model.norms]
            label = f"{title}: class token"
            axes.plot(depth, first, ":", lw=1.4, color=colour, label=label)
    axes.set_yscale("log")
    add_key(axes)
    return figure


def draw_positions(positions: PositionMaps) -> Figure:
    """Similarities as a grid of maps, one for each token; or a bias for each head."""
    values = positions.values
    rows, columns = values.shape[2:]
    if positions.is_bias:
        limit = max(float(values.abs().max()), 1e-6)
        scale = ColourScale(-limit, limit, "RdBu_r", "bias")
        row = Row(name="bias", panels=values[0])
        return draw_montage([row], scale, rows / columns, "head")
    scale = ColourScale(-1, 1, "RdBu_r", "cosine similarity")
    labels = [f"row {number + 1}" for number in range(len(values))]
    named = [
        Row(name=label, panels=row) for label, row in zip(labels, values, strict=True)
    ]
    return draw_montage(named, scale, rows / columns, "column")


def draw_filters(filters: FirstFilters) -> Figure:
    """The filters of the largest norm, with one scale around grey."""
    values = largest(filters.values)
    if values.shape[1] != 3:
        values = values.mean(1, keepdim=True).expand(-1, 3, -1, -1)
    limit = values.abs().flatten().quantile(0.99).clamp(min=1e-12)
    painted = (0.5 + 0.5 * values / limit).clamp(0, 1)
    times = max(1, round(28 / max(values.shape[2:])))
    painted = painted.repeat_interleave(times, 2).repeat_interleave(times, 3)
    number, _, height, width = painted.shape
    columns = min(16, number)
    rows = -(-number // columns)
    step_y, step_x = height + 4, width + 4
    canvas = np.zeros((rows * step_y - 4, columns * step_x - 4, 4))
    for panel, filter_ in enumerate(painted.permute(0, 2, 3, 1).numpy()):
        top, left = (panel // columns) * step_y, (panel % columns) * step_x
        canvas[top : top + height, left : left + width, :3] = filter_
        canvas[top : top + height, left : left + width, 3] = 1
    wide = min(0.75 * canvas.shape[1], 420.0)
    high = wide * canvas.shape[0] / canvas.shape[1]
    figure = new_figure(wide + 8, high + 8)
    show(bare(axes_at(figure, 4, 4, wide, high)), canvas)
    return figure


def largest(filters: Tensor) -> Tensor:
    """The filters of the largest norm, in its order."""
    order = filters.flatten(1).norm(dim=1).argsort(descending=True)
    return filters[order[:FILTERS_SHOWN]]


def along(items: Any) -> np.ndarray:
    """Evenly spaced numbers from 0 to 100, one for each item."""
    return np.linspace(0, 100, len(items))


def show(axes: Any, picture: np.ndarray, **settings: Any) -> None:
    """Fills the axes with a picture of any resolution."""
    extent = (0, 1, 1, 0)
    axes.imshow(picture, interpolation="none", aspect="auto", extent=extent, **settings)


def image_panel(pixels: Pixels) -> tuple[float, float]:
    """Width and height in points of a panel that shows an image."""
    aspect = min(max(aspect_of(pixels), 0.25), 4.0)
    return PANEL * max(1 / aspect, 1), PANEL * max(aspect, 1)


def picture_of(pixels: Pixels) -> np.ndarray:
    """An image with channels last, in colour."""
    picture = np.moveaxis(pixels[0].cpu().numpy(), 0, -1)
    grey = picture.shape[-1] < 3
    return shrunk(picture[..., :1].repeat(3, -1) if grey else picture[..., :3])


def shrunk(picture: np.ndarray) -> np.ndarray:
    """A picture of at most MAX_PIXELS along its longer side."""
    times = max(picture.shape[:2]) / MAX_PIXELS
    if times <= 1:
        return picture
    is_bytes = picture.dtype == np.uint8
    image = Image.fromarray(picture if is_bytes else (255 * picture).astype(np.uint8))
    size = tuple(max(1, round(side / times)) for side in (image.width, image.height))
    return np.asarray(image.resize(size, Image.Resampling.BOX))


def aspect_of(pixels: Tensor) -> float:
    """Height over width."""
    return pixels.shape[-2] / pixels.shape[-1]


def short_layer(name: str) -> str:
    """`block 3` as 3 and `token transformer 1` as t1."""
    number = name.split()[-1]
    return f"t{number}" if name.startswith("token") else number
