"""A figure of features: t-SNE in two dimensions, coloured by class."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int64
from matplotlib import colormaps
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from t2t.analysis.figure import display_names, save_figure, shortened
from t2t.data.sources.splitting import permutation

MAX_POINTS = 5000
"""Most images in the figure; of more, a random sample is drawn."""
MAX_COLOURS = 18
"""The largest classes get a colour; the others are grey."""
_PCA_WIDTH = 50
_PERPLEXITY = 30
_GREY = "#c9c9c9"

Points = Float[np.ndarray, "images 2"]


def tsne_points(features: Float[np.ndarray, "images width"], seed: int = 0) -> Points:
    """Coordinates whose distances follow the cosine similarity of the features."""
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    lengths = np.linalg.norm(features, axis=1, keepdims=True)
    directions = features / np.maximum(lengths, 1e-12)
    if np.ptp(directions, axis=0).max() < 1e-6:  # one image, or copies of one
        return np.zeros((len(features), 2), np.float32)
    width = min(_PCA_WIDTH, *directions.shape)
    directions = PCA(width, random_state=seed).fit_transform(directions)
    tsne = TSNE(
        perplexity=min(_PERPLEXITY, (len(features) - 1) / 3),
        init="pca" if width > 1 else "random",
        random_state=seed,
    )
    points: Points = tsne.fit_transform(directions)
    return points


def draw_tsne(
    features: Float[np.ndarray, "images width"],
    labels: Int64[np.ndarray, " images"],
    classes: Sequence[str],
    path: str | Path,
    title: str = "",
    seed: int = 0,
) -> Path:
    """Draw a point for each image; without classes, all have one colour."""
    shown = np.sort(permutation(len(features), seed)[:MAX_POINTS])
    features, labels = features[shown], labels[shown]
    figure = Figure(figsize=(10.5, 8), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    points = tsne_points(features, seed)
    if classes:
        draw_classes(axes, points, labels, display_names(classes))
    else:
        across, up = points.T
        axes.scatter(across, up, s=point_size(len(points)), color="C0", linewidths=0)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_aspect("equal", "datalim")
    for edge in axes.spines.values():
        edge.set_color("#bbbbbb")
    heading = f"{shortened(title, 90)}\nt-SNE of {len(points):,} images".strip()
    figure.suptitle(heading, fontsize=12, parse_math=False)
    return save_figure(figure, path, dpi=120)


def draw_classes(
    axes: Any,
    points: Points,
    labels: Int64[np.ndarray, " images"],
    names: Sequence[str],
) -> None:
    """Draw the points in the colours of their classes, with a legend."""
    counts = np.bincount(labels, minlength=len(names))
    order = np.argsort(-counts, kind="stable")
    named = np.sort(order[: min(MAX_COLOURS, int((counts > 0).sum()))])
    others = ~np.isin(labels, named)
    size = point_size(len(points))
    if others.any():
        num = int((counts > 0).sum()) - len(named)
        label = f"{num} other class{'es' if num > 1 else ''}"
        axes.scatter(*points[others].T, s=size, color=_GREY, linewidths=0, label=label)
    palette = [colormaps["tab10"](number) for number in range(10)]
    if len(named) > len(palette):
        palette = [colormaps["tab20"](number) for number in range(20)]
        del palette[14:16]  # greys, which stand for the other classes
    # In random order: no class hides the others.
    drawn = permutation(len(points), 1)
    drawn = drawn[~others[drawn]]
    colour_of = dict(zip(named.tolist(), palette, strict=False))
    colour = [colour_of[number] for number in labels[drawn].tolist()]
    axes.scatter(*points[drawn].T, s=size, c=colour, linewidths=0, alpha=0.8)
    for number in named.tolist():
        name = f"{names[number]} ({counts[number]:,})"
        axes.scatter([], [], s=60, color=colour_of[number], label=name)
    legend = axes.legend(
        loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=11
    )
    for text, handle in zip(legend.get_texts(), legend.legend_handles, strict=True):
        text.set_parse_math(False)  # names may contain a $
        handle.set_sizes([60])


def point_size(num: int) -> float:
    """The area of a point, in square points: smaller if there are many."""
    return float(np.clip(20_000 / num, 4, 60))
