"""A figure of the confusion matrix and the most frequent confusions."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int64
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from torch import Tensor

from t2t.analysis.figure import display_names, save_figure, shortened

_RIGHT = LinearSegmentedColormap.from_list("right", ["#ffffff", "#9ecae1", "#08519c"])
_WRONG = LinearSegmentedColormap.from_list("wrong", ["#ffffff", "#fc9272", "#a50f15"])
_MAX_WITH_COUNTS = 20
_MAX_NAMES = 60
# A thousand classes take 0.4 GB and a few seconds; both grow with the square.
_MAX_CLASSES = 1000
_MAX_CONFUSIONS = 20
_CONFUSIONS_PER_INCH = 2.5

Counts = Int64[np.ndarray, "true predicted"]
Shares = Float[np.ndarray, "true predicted"]


class SparseConfusion(NamedTuple):
    """A sparse confusion matrix: true class, predicted class, number of images."""

    rows: Int64[np.ndarray, " pairs"]
    columns: Int64[np.ndarray, " pairs"]
    counts: Int64[np.ndarray, " pairs"]

    def where(self, kept: Bool[np.ndarray, " pairs"]) -> "SparseConfusion":
        """The entries where `kept` is true."""
        return SparseConfusion(*(each[kept] for each in self))


def draw_confusion(
    confusion: Int64[Tensor, "true predicted"],
    class_names: Sequence[str],
    path: str | Path,
    title: str = "",
) -> Path:
    """Draw the confusion matrix into a file."""
    figure = confusion_figure(confusion, class_names, title)
    return save_figure(figure, path, dpi=figure.dpi)


def confusion_figure(
    confusion: Int64[Tensor, "true predicted"],
    class_names: Sequence[str],
    title: str = "",
) -> Figure:
    """A figure of the confusion matrix: correct in blue, wrong in red.

    The matrix may be sparse. Classes that are neither true nor predicted are left out.
    If there are too many, those with the most mistakes are drawn.
    """
    table = confusion.cpu().to_sparse().coalesce()
    kept, positions = np.unique(table.indices().numpy(), return_inverse=True)
    rows, columns = positions.reshape(2, -1)
    pairs = SparseConfusion(rows, columns, table.values().numpy())
    all_names = display_names([class_names[number] for number in kept.tolist()])
    drawn = worst_classes(pairs, len(kept))
    names = [all_names[number] for number in drawn.tolist()]
    num = len(names)
    cell = 0.46 if num <= _MAX_WITH_COUNTS else 0.2 if num <= _MAX_NAMES else 0.05
    side = min(max(num * cell, 4.0), 16.0)
    figure = Figure(
        figsize=(side + 5.6, side + 1.6),
        dpi=max(120, 2 * num / side),  # at least two pixels per class
        layout="constrained",
    )
    FigureCanvasAgg(figure)
    matrix, mistakes = figure.subplots(1, 2, width_ratios=[side + 1.6, 4.0])
    draw_matrix(matrix, *counts_and_shares(pairs, drawn), names)
    if len(drawn) < len(kept):
        matrix.set_title(f"{num:,} of {len(kept):,} classes: most mistakes")
    most = min(_MAX_CONFUSIONS, int(side * _CONFUSIONS_PER_INCH))
    draw_confusions(mistakes, pairs, all_names, most)
    right = pairs.counts[pairs.rows == pairs.columns].sum() / pairs.counts.sum()
    heading = f"{shortened(title, 80)}   top-1 {100 * right:.2f} %".strip()
    figure.suptitle(heading, fontsize=12, parse_math=False)  # names may contain a $
    return figure


def worst_classes(pairs: SparseConfusion, num: int) -> Int64[np.ndarray, " drawn"]:
    """All classes in order; if there are too many, those with the most mistakes."""
    wrong = pairs.where(pairs.rows != pairs.columns)
    involved = np.concatenate([wrong.rows, wrong.columns])
    mistakes = np.bincount(involved, np.tile(wrong.counts, 2), minlength=num)
    return np.sort(np.argsort(-mistakes, kind="stable")[:_MAX_CLASSES])


def counts_and_shares(
    pairs: SparseConfusion, drawn: Int64[np.ndarray, " drawn"]
) -> tuple[Counts, Shares]:
    """Numbers of images, and their shares of the images of the true class."""
    totals = np.bincount(pairs.rows, pairs.counts, minlength=drawn[-1] + 1)[drawn]
    inside = pairs.where(np.isin(pairs.rows, drawn) & np.isin(pairs.columns, drawn))
    counts = np.zeros((len(drawn), len(drawn)), np.int64)
    position = np.searchsorted(drawn, (inside.rows, inside.columns))
    counts[*position] = inside.counts
    return counts, counts / np.maximum(totals[:, None], 1)


def draw_matrix(axes: Any, counts: Counts, shares: Shares, names: list[str]) -> None:
    """Draw the shares as colours, with numbers if there is room."""
    num = len(names)
    # The square root makes rare mistakes visible.
    colours = _WRONG(np.sqrt(shares))
    diagonal = np.arange(num)
    colours[diagonal, diagonal] = _RIGHT(shares[diagonal, diagonal])
    axes.imshow(colours, interpolation="nearest")
    if num <= _MAX_WITH_COUNTS:
        for row, column in zip(*np.nonzero(counts), strict=True):
            strong = shares[row, column] > (0.6 if row == column else 0.3)
            axes.text(
                column,
                row,
                f"{counts[row, column]}",
                ha="center",
                va="center",
                fontsize=8,
                color="white" if strong else "black",
            )
    every = -(-num // _MAX_NAMES)
    shown = diagonal[::every]
    labels = [names[number] for number in shown]
    size = 9 if num <= _MAX_WITH_COUNTS else 7
    room = axes.figure.get_size_inches()[1] * 72 / num
    flat = max(map(len, labels)) * size * 0.8 < room
    style = {"fontsize": size, "parse_math": False}
    axes.set_xticks(shown, labels, rotation=0 if flat else 90, **style)
    axes.set_yticks(shown, labels, **style)
    axes.set_xlabel("predicted")
    axes.set_ylabel("true" if every == 1 else f"true (one class in {every} is named)")
    axes.tick_params(length=0)
    if num <= _MAX_NAMES:
        axes.set_xticks(np.arange(num + 1) - 0.5, minor=True)
        axes.set_yticks(np.arange(num + 1) - 0.5, minor=True)
        axes.grid(which="minor", color="#e6e6e6", linewidth=0.5)
        axes.tick_params(which="minor", length=0)
    for edge in axes.spines.values():
        edge.set_color("#bbbbbb")


def draw_confusions(
    axes: Any, pairs: SparseConfusion, names: list[str], most: int
) -> None:
    """Draw the most frequent confusions as labelled bars."""
    wrong = pairs.where(pairs.rows != pairs.columns)
    order = np.argsort(-wrong.counts, kind="stable")[:most]
    shown = [*zip(*(each[order].tolist() for each in wrong), strict=True)]
    axes.set_title("frequent confusions: true → predicted", fontsize=10, loc="left")
    for edge in axes.spines.values():
        edge.set_visible(False)
    if not shown:
        axes.set_xticks([])
        axes.set_yticks([])
        axes.text(0.5, 0.5, "none", ha="center", va="center", transform=axes.transAxes)
        return
    counts = [count for _, _, count in shown]
    heights = [position + 0.17 for position in range(len(shown))]
    axes.barh(heights, counts, height=0.22, color="#fc9272")
    for position, (row, column, count) in enumerate(shown):
        label = f"{names[row]} → {names[column]}"
        axes.text(0, position - 0.2, label, fontsize=8, va="center", parse_math=False)
        axes.text(count, position + 0.17, f" {count}", fontsize=8, va="center")
    axes.set_xlim(0, max(counts) * 1.15)
    axes.set_ylim(most - 0.4, -0.6)
    axes.set_xticks([])
    axes.set_yticks([])
