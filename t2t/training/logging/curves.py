"""Draws the curves of a run."""

from pathlib import Path
from typing import Any

from t2t.atomic import atomic_file
from t2t.tasks import Metric


def draw_curves(
    rows: list[dict[str, Any]], title: str, path: Path, metric: Metric
) -> None:
    """Loss, primary metric and learning rate over the steps, into a PNG file."""
    # Slow to import, and drawing comes late in a run.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.4), layout="constrained")
    FigureCanvasAgg(figure)
    loss, score, rate = figure.subplots(1, 3)
    steps = [row for row in rows if "loss" in row]
    scores = [row for row in rows if "epoch" in row]

    def line(axes: Any, some: list[dict[str, Any]], key: str, label: str) -> None:
        points = [(row["step"], row[key]) for row in some if row.get(key) is not None]
        if points:
            marker = "." if len(points) < 30 else None
            axes.plot(*zip(*points, strict=True), label=label, marker=marker)

    line(loss, steps, "loss", "training (augmented)")
    line(loss, scores, "val_loss", "validation")
    line(score, scores, metric.name, "EMA")
    line(score, scores, f"{metric.name}_raw", "raw")
    line(rate, steps, "lr", "learning rate")
    loss.set_title("loss")
    score.set_title(metric.heading)
    rate.set_title("learning rate")
    for axes in (loss, score, rate):
        axes.set_xlabel("step")
        axes.grid(alpha=0.3)
        if axes.lines:
            axes.legend(frameon=False, fontsize="small")
    figure.suptitle(title, parse_math=False)  # a name may hold a $
    with atomic_file(path) as part:
        figure.savefig(part, dpi=120, format="png")
