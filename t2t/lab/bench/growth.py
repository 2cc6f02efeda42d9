"""Speed and memory over image size, batch size and depth."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator
from PIL import Image

from t2t.analysis.figure import save_figure
from t2t.errors import UserError
from t2t.lab.bench.cases import Case, default_depth

Row = dict[str, Any]
Axis = Literal["size", "batch", "depth"]

FACTORS: dict[Axis, tuple[float, ...]] = {
    # Of 224 px: 96, 128, 160, 224, 288, 384 and 512.
    "size": (3 / 7, 4 / 7, 5 / 7, 1, 9 / 7, 12 / 7, 16 / 7),
    "batch": (1 / 8, 1 / 4, 1 / 2, 1, 2, 4),
    "depth": (1 / 4, 1 / 2, 1, 3 / 2, 2),
}
"""Factors of the base case's image side, batch size and depth."""
KEYS: dict[Axis, str] = {"size": "image_size", "batch": "batch", "depth": "depth"}
FIXED: dict[Axis, Sequence[str]] = {
    "size": ["batch"],
    "batch": ["image_size"],
    "depth": ["image_size", "batch"],
}
SHOWN = ("images_per_second", "peak_memory_gib")
SOFTWARE = "t2t bench --grow"
"""The name in the file of a picture, so that it may be replaced."""
TITLES = {"size": "image side, pixels", "batch": "batch", "depth": "blocks"}


def grown_cases(case: Case, axes: Sequence[Axis]) -> list[Case]:
    """A case with its smaller and larger variants along each axis."""
    cases = [case]
    for axis in axes:
        key = KEYS[axis]
        base = default_depth(case.model) if axis == "depth" else getattr(case, key)
        others: list[dict[str, Any]] = [
            {key: each} for each in numbers_around(base, FACTORS[axis]) if each != base
        ]
        cases += [replace(case, **other) for other in others]
    return list(dict.fromkeys(cases))


def numbers_around(number: int, factors: Sequence[float]) -> list[int]:
    """Smaller and larger whole numbers, each once."""
    return sorted({max(1, round(number * factor)) for factor in factors})


def picture_beside(rows: Path) -> Path:
    """Where the picture of rows goes; an error if a file not drawn here is there."""
    picture = rows.with_suffix(".png")
    if not picture.exists():
        return picture
    try:
        with Image.open(picture) as image:
            is_ours = image.info.get("Software") == SOFTWARE
    except OSError:  # no image
        is_ours = False
    if not is_ours:
        raise UserError(
            f"--grow draws {picture}, but a file that it did not draw is there: name "
            "other rows by --out, or move that file."
        )
    return picture


def draw_growth(
    rows: Sequence[Row],
    bases: Sequence[Case],
    axes: Sequence[Axis],
    gpu: str,
    path: Path,
) -> Path:
    """Draw images/s and memory: a column per axis, a line per base case.

    Rows of other GPUs are ignored.
    """
    rows = [row for row in rows if row.get("gpu") == gpu]
    versions: dict[str, None] = {}
    figure = Figure(figsize=(1.2 + 3.8 * len(axes), 6.4), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(2, len(axes), squeeze=False, sharex="col", sharey="row")
    for column, axis in enumerate(axes):
        for base in bases:
            line = points(rows, base, axis)
            draw_line(panels[:, column], line, base, label_of(base, bases))
            versions |= dict.fromkeys(str(row["torch"]) for row in line)
        for panel in panels[:, column]:
            panel.set_xscale("log", base=2)
            panel.set_yscale("log")
            panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            ticks = sorted({x for line in panel.lines for x in line.get_xdata()})
            panel.set_xticks(ticks, [f"{tick:g}" for tick in ticks], fontsize=8)
            panel.minorticks_off()
            panel.yaxis.set_major_formatter(lambda value, _: f"{value:,.6g}")
            panel.grid(alpha=0.3)
        panels[1, column].set_xlabel(TITLES[axis])
        panels[0, column].set_title(", ".join(shared(bases, FIXED[axis])), fontsize=9)
    panels[0, 0].set_ylabel("images/s")
    panels[1, 0].set_ylabel("peak memory, GiB")
    if panels[0, 0].lines:  # empty if nothing could be measured
        panels[0, 0].legend(frameon=False, fontsize=8)
    title = [gpu, *shared(bases, ["precision"]), f"torch {' and '.join(versions)}"]
    figure.suptitle(", ".join(title))
    return save_figure(figure, path, dpi=120, software=SOFTWARE)


def draw_line(panels: Any, rows: Sequence[Row], base: Case, label: str) -> None:
    """Draw images/s and memory of one base case."""
    dashes = "-" if base.mode == "train" else "--"
    for panel, key in zip(panels, SHOWN, strict=True):
        pairs = [(row["at"], row[key]) for row in rows if is_number(row[key])]
        if pairs:
            panel.plot(*zip(*pairs, strict=True), f"o{dashes}", label=label, ms=4)


def is_number(value: object) -> bool:
    """Whether a value is a positive number."""
    return isinstance(value, int | float) and value > 0


def points(rows: Sequence[Row], base: Case, axis: Axis) -> list[Row]:
    """The rows that differ from a case along one axis only, sorted by it.

    Incomplete rows, such as those written by hand, are ignored.
    """
    fixed = {
        "model": base.model,
        "mode": base.mode,
        "precision": base.precision,
        "image_size": base.image_size,
        "batch": base.batch,
        "depth": base.depth,
        "source": "synthetic",
        "launch": base.launch,
        "recipe": None,
    }
    fixed.pop(KEYS[axis])
    found = []
    for row in rows:
        if all(row.get(key) == value for key, value in fixed.items()):
            at = row.get(KEYS[axis]) or (
                default_depth(base.model) if axis == "depth" else 0
            )
            if is_number(at) and row.keys() >= {"torch", *SHOWN}:
                found.append({**row, "at": at})
    return sorted(found, key=lambda row: row["at"])


LABELS = {"precision": "{}", "image_size": "{} px", "batch": "batch {}"}


def shared(bases: Sequence[Case], keys: Sequence[str]) -> list[str]:
    """The values of these keys that all cases share, as text."""
    values = {key: {getattr(base, key) for base in bases} for key in keys}
    return [LABELS[key].format(*each) for key, each in values.items() if len(each) == 1]


def label_of(base: Case, bases: Sequence[Case]) -> str:
    """The label of a case: model, mode, and what differs from other cases."""
    words = [base.model, "training" if base.mode == "train" else "inference"]
    for key, label in LABELS.items():
        if not shared(bases, [key]):
            words.append(label.format(getattr(base, key)))
    return ", ".join(words)
