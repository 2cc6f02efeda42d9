"""README's results table, made from the summary of every record."""

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

COLUMNS = (
    "recipe",
    "data",
    "model",
    "parameters",
    "epochs",
    "training",
    "top-1, %",
    "GPU",
    "record",
)
INTRODUCTION = """\
## Results

Top-1 of averaged weights: mean ± standard deviation over the seeds (how many in brackets), single model, single view.
Training is the time of all steps, without compiling and evaluating. Command, log and numbers of every seed lie in the
record; `t2t record` makes one."""  # noqa: E501


def results_section(records: Path) -> str:
    """A row for each record of trained models; empty where there is none."""
    paths = sorted(records.glob("*/summary.json"))
    rows = [row(json.loads(path.read_text()), path.parent.name) for path in paths]
    if not rows:
        return ""
    heading = [line(COLUMNS), line(["---"] * len(COLUMNS))]
    return "\n\n".join([INTRODUCTION, "\n".join([*heading, *rows])])


def line(cells: Sequence[str]) -> str:
    """Cells of a table."""
    return f"| {' | '.join(cells)} |"


def row(summary: dict[str, Any], folder: str) -> str:
    """A record in one line."""
    top1 = summary["top1"]
    spread = f" ± {statistics.stdev(top1):.2f}" if len(top1) > 1 else ""
    cells = [
        f"`{summary['recipe']}`",
        summary["data"],
        f"`{summary['model']}`",
        f"{summary['parameters'] / 1e6:.2f} M",
        str(summary["epochs"]),
        minutes(summary["train_minutes"]),
        f"{statistics.fmean(top1):.2f}{spread} ({len(top1)})",
        summary["gpu"],
        f"[{folder}](records/{folder})",
    ]
    return line(cells)


def minutes(number: float) -> str:
    """A time that is told in seconds where it is short."""
    return f"{60 * number:.0f} s" if number < 2 else f"{number:.1f} min"
