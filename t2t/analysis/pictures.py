"""Pictures that explain a model."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int64
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from torch import Tensor

from t2t.errors import UserError, on_one_line

_RIGHT = LinearSegmentedColormap.from_list("right", ["#ffffff", "#9ecae1", "#08519c"])
_WRONG = LinearSegmentedColormap.from_list("wrong", ["#ffffff", "#fc9272", "#a50f15"])
_NUM_WITH_NUMBERS = 20
_NUM_NAMES = 60
_NUM_PAIRS = 20
_PAIRS_PER_INCH = 2.5
_LONGEST_NAME = 24

Shares = Float[np.ndarray, "true predicted"]


def draw_confusion(
    confusion: Int64[Tensor, "true predicted"],
    class_names: Sequence[str],
    path: str | Path,
    title: str = "",
) -> Path:
    """What each class is taken for, as a PNG file: right in blue, wrong in red.

    Classes without images are left out, unless others are taken for them.
    """
    counts = confusion.cpu().numpy()
    kept = np.flatnonzero(counts.sum(0) + counts.sum(1))
    counts = counts[np.ix_(kept, kept)]
    names = told_apart([class_names[number] for number in kept.tolist()])
    num = len(names)
    cell = 0.46 if num <= _NUM_WITH_NUMBERS else 0.2 if num <= _NUM_NAMES else 0.05
    side = min(max(num * cell, 4.0), 16.0)
    figure = Figure(figsize=(side + 5.6, side + 1.6), layout="constrained")
    FigureCanvasAgg(figure)
    matrix, pairs = figure.subplots(1, 2, width_ratios=[side + 1.6, 4.0])
    draw_matrix(matrix, counts, names)
    list_pairs(pairs, counts, names, min(_NUM_PAIRS, int(side * _PAIRS_PER_INCH)))
    right = counts.trace() / counts.sum()
    heading = f"{shortened(title, 80)}   top-1 {100 * right:.2f} %".strip()
    figure.suptitle(heading, fontsize=12, parse_math=False)  # names may hold a $
    file = Path(path).expanduser()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        # Each of a thousand classes still gets a dot of its own.
        figure.savefig(file, dpi=max(120, 2 * num / side))
    except (OSError, ValueError) as error:
        raise UserError(f"The picture {path} could not be written: {error}.") from error
    return file


def draw_matrix(axes: Any, counts: Any, names: Sequence[str]) -> None:
    """Shares of each true class by colour, with numbers where they have room."""
    num = len(names)
    totals = np.maximum(counts.sum(1, keepdims=True), 1)
    shares: Shares = counts / totals
    # A root shows the rare mistakes, which are most of them.
    colours = _WRONG(np.sqrt(shares))
    diagonal = np.arange(num)
    colours[diagonal, diagonal] = _RIGHT(shares[diagonal, diagonal])
    axes.imshow(colours, interpolation="nearest")
    if num <= _NUM_WITH_NUMBERS:
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
    every = -(-num // _NUM_NAMES)
    shown = diagonal[::every]
    labels = [names[number] for number in shown]
    size = 9 if num <= _NUM_WITH_NUMBERS else 7
    room = axes.figure.get_size_inches()[1] * 72 / num
    flat = max(map(len, labels)) * size * 0.8 < room
    look = {"fontsize": size, "parse_math": False}
    axes.set_xticks(shown, labels, rotation=0 if flat else 90, **look)
    axes.set_yticks(shown, labels, **look)
    axes.set_xlabel("predicted")
    axes.set_ylabel("true" if every == 1 else f"true (one class in {every} is named)")
    axes.tick_params(length=0)
    if num <= _NUM_NAMES:
        axes.set_xticks(np.arange(num + 1) - 0.5, minor=True)
        axes.set_yticks(np.arange(num + 1) - 0.5, minor=True)
        axes.grid(which="minor", color="#e6e6e6", linewidth=0.5)
        axes.tick_params(which="minor", length=0)
    for edge in axes.spines.values():
        edge.set_color("#bbbbbb")


def list_pairs(axes: Any, counts: Any, names: Sequence[str], most: int) -> None:
    """The commonest mistakes in words, as bars."""
    wrong = counts.copy()
    np.fill_diagonal(wrong, 0)
    order = np.argsort(-wrong, axis=None, kind="stable")[:most]
    places = [divmod(int(place), len(names)) for place in order]
    pairs = [(row, column) for row, column in places if wrong[row, column]]
    axes.set_title("commonest mistakes: true → predicted", fontsize=10, loc="left")
    for edge in axes.spines.values():
        edge.set_visible(False)
    if not pairs:
        axes.set_xticks([])
        axes.set_yticks([])
        axes.text(0.5, 0.5, "none", ha="center", va="center", transform=axes.transAxes)
        return
    amounts = [int(wrong[pair]) for pair in pairs]
    heights = [place + 0.17 for place in range(len(pairs))]
    axes.barh(heights, amounts, height=0.22, color="#fc9272")
    for place, ((row, column), amount) in enumerate(zip(pairs, amounts, strict=True)):
        words = f"{names[row]} → {names[column]}"
        axes.text(0, place - 0.2, words, fontsize=8, va="center", parse_math=False)
        axes.text(amount, place + 0.17, f" {amount}", fontsize=8, va="center")
    axes.set_xlim(0, max(amounts) * 1.15)
    axes.set_ylim(most - 0.4, -0.6)
    axes.set_xticks([])
    axes.set_yticks([])


def told_apart(names: Sequence[str]) -> list[str]:
    """Names with room for others; of several words for one thing, perhaps the first."""
    firsts = Counter(name.partition(",")[0] for name in names)
    shown = []
    for name in names:
        first = name.partition(",")[0]
        is_enough = len(name) > _LONGEST_NAME and firsts[first] == 1
        shown.append(shortened(first if is_enough else name, _LONGEST_NAME))
    return shown


def shortened(name: str, most: int) -> str:
    """A name that leaves room for others: those that begin alike end differently."""
    shown = on_one_line(name)
    head, tail = most - most // 3 - 1, most // 3
    return shown if len(shown) <= most else f"{shown[:head]}…{shown[-tail:]}"
