"""Figures of a study's results and of the seeds of a record."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from t2t.atomic import atomic_file
from t2t.lab.studies.results import Arm, StudyResult
from t2t.tasks.registry import primary_metric

if TYPE_CHECKING:
    from t2t.lab.records.record import FinishedRun

COLOUR, DOTS = "#08519c", "#9ecae1"
COSTS: dict[str, Callable[[Arm], float]] = {
    "parameters, M": lambda arm: arm.cost.parameters / 1e6,
    "MACs, G": lambda arm: arm.cost.macs / 1e9,
    "training images/s": lambda arm: arm.values("images_per_second").mean,
}


def draw_study(result: StudyResult, path: Path) -> None:
    """Draw the primary metric of the arms, or the metric against cost."""
    arms = list(result.arms.values())
    figure = draw_costs(arms) if result.study.against_cost else draw_arms(arms)
    figure.suptitle(result.study.question)
    for text in figure.findobj(Text):  # a study's text may hold a $
        text.set_parse_math(False)
    with atomic_file(path) as part:
        figure.savefig(part, dpi=120, format="png")


def draw_arms(arms: Sequence[Arm]) -> Figure:
    """Mean and standard deviation of every arm, and its seeds as dots."""
    figure = Figure(figsize=(8, 1.4 + 0.5 * len(arms)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    rows = list(range(len(arms)))
    for row, arm in zip(rows, arms, strict=True):
        values = arm.primary
        seeds = list(values.by_seed.values())
        axes.plot(seeds, [row] * len(seeds), "o", color=DOTS, markersize=6)
        draw_mean_and_std(axes, values.mean, row, along_x=values.std)
        axes.annotate(
            f"{values.mean:.{arm.metric.digits}f}",
            (values.mean, row),
            (0, 8),
            textcoords="offset points",
            ha="center",
            fontsize=8,
        )
    axes.set_yticks(rows, [arm.name for arm in arms])
    axes.set_ylim(len(arms) - 0.4, -0.7)
    heading = arms[0].metric.heading
    axes.set_xlabel(f"{heading}: mean ± standard deviation, and the seeds")
    axes.grid(axis="x", alpha=0.3)
    return figure


def draw_costs(arms: Sequence[Arm]) -> Figure:
    """The metric against parameters, MACs and speed, a panel each."""
    figure = Figure(figsize=(14, 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(COSTS), sharey=True)
    for axes, (label, cost) in zip(panels, COSTS.items(), strict=True):
        for number, arm in enumerate(arms):
            values = arm.primary
            draw_mean_and_std(
                axes,
                cost(arm),
                values.mean,
                along_y=values.std,
                colour=f"C{number}",
                label=arm.name,
            )
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.margins(x=0.15, y=0.12)
        axes.set_xlabel(label)
        axes.grid(alpha=0.3)
    panels[0].set_ylabel(arms[0].metric.heading)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False)
    return figure


def draw_mean_and_std(
    axes: Any,
    x: float,
    y: float,
    *,
    along_x: float | None = None,
    along_y: float | None = None,
    colour: str = COLOUR,
    label: str | None = None,
) -> None:
    """A point with error bars."""
    axes.errorbar(
        x,
        y,
        xerr=along_x,
        yerr=along_y,
        fmt="s",
        color=colour,
        label=label,
        capsize=4,
        markersize=5,
    )


def draw_seeds(runs: "Sequence[FinishedRun]", path: Path) -> None:
    """Draw training loss and metric (EMA and raw) of every seed over the steps."""
    metric = primary_metric(runs[0].recipe["task"], runs[0].result["metric"])
    figure = Figure(figsize=(11, 3.8), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, 3, sharex=True)
    panels[2].sharey(panels[1])  # to compare EMA and raw
    titles = {
        "loss": "training loss",
        metric.name: f"{metric.heading} (EMA)",
        f"{metric.name}_raw": f"{metric.heading} (raw)",
    }
    for axes, (key, title) in zip(panels, titles.items(), strict=True):
        for run in runs:
            points = [(row["step"], row[key]) for row in run.rows if key in row]
            marker = "." if len(points) < 30 else None
            axes.plot(
                [step for step, _ in points],
                [value for _, value in points],
                marker=marker,
                label=f"seed {run.seed}",
            )
        axes.set_title(title)
        axes.set_xlabel("step")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.9g}"))
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        axes.grid(alpha=0.3)
    if metric.unit.strip() == "%":
        panels[1].set_ylim(top=min(panels[1].get_ylim()[1], 100))
    panels[0].legend(frameon=False, fontsize="small")
    figure.suptitle(runs[0].result["recipe"], parse_math=False)
    with atomic_file(path) as part:
        figure.savefig(part, dpi=120, format="png")
