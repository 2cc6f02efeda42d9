"""The README's results table, from the summary of every record."""

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

Top-1 of the EMA weights: mean ± standard deviation over the seeds (their number in brackets), single model, single view.
Training time is the time of all steps, without compiling and evaluating. Each record has the command, and log and metrics
of every seed; `t2t record` writes it."""  # noqa: E501


def results_section(records: Path) -> str:
    """A row for each record of trained models; empty if there is none."""
    paths = sorted(records.glob("*/summary.json"))
    rows = [row(json.loads(path.read_text()), path.parent.name) for path in paths]
    if not rows:
        return ""
    heading = [line(COLUMNS), line(["---"] * len(COLUMNS))]
    return "\n\n".join([INTRODUCTION, "\n".join([*heading, *rows])])


def line(cells: Sequence[str]) -> str:
    """A row of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def row(summary: dict[str, Any], folder: str) -> str:
    """A record as a row."""
    top1 = summary["top1"]
    spread = f" ± {statistics.stdev(top1):.2f}" if len(top1) > 1 else ""
    cells = [
        f"`{summary['recipe']}`",
        Path(summary["data"]).name,
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
    """A time, in seconds if it is short."""
    return f"{60 * number:.0f} s" if number < 2 else f"{number:.1f} min"
