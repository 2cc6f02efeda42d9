"""The page after a cross-validation: every fold, the mean, what to run next."""

import re

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from t2t.tasks.base import Metric
from t2t.tasks.registry import task_class
from t2t.training.environment import command_line
from t2t.training.result import Result
from t2t.training.run_files import FOLDS
from t2t.training.saved_run import read_recipe

FOLDS_OPTION = r" --folds[ =]\d+"


def folds_summary(result: Result) -> RenderableType:
    """The whole page."""
    summary = result.summary
    task = task_class(read_recipe(result.folds[0].folder).task)
    names = {each.name for each in task.metrics if each.name in summary} - {"top5"}
    metrics = [each for each in task.metrics if each.name in names]
    primary = next(each for each in metrics if each.name == summary["metric"])
    return Group(
        Text(),
        Text(
            f"{summary['recipe']}: {primary.label} {with_spread(result, primary)} over "
            f"{len(result.folds)} folds (mean ± standard deviation)"
        ),
        Text(),
        folds_table(result, metrics),
        Text(),
        Text(next_steps(result)),
    )


def folds_table(result: Result, metrics: list[Metric]) -> Table:
    """A row for every fold, and one of means."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("fold", style="cyan", overflow="fold")
    for metric in metrics:
        table.add_column(metric.label, justify="right", no_wrap=True)
    for number, fold in enumerate(result.folds):
        values = [result.summary[f"{each.name}_folds"][number] for each in metrics]
        shown = [each.show(value) for each, value in zip(metrics, values, strict=True)]
        last = number == len(result.folds) - 1
        table.add_row(Text(str(fold.folder)), *shown, end_section=last)
    table.add_row("mean", *(with_spread(result, each) for each in metrics))
    return table


def with_spread(result: Result, metric: Metric) -> str:
    """The mean over the folds, with the standard deviation."""
    mean = result.summary[metric.name]
    std = result.summary[f"{metric.name}_std"]
    if mean is None or std is None:
        return metric.show(None)
    return f"{mean:.{metric.digits}f} ± {metric.show(std)}"


def next_steps(result: Result) -> str:
    """Says that no final model is saved, and how to train one."""
    num_folds = len(result.folds)
    share = f"{100 * (1 - 1 / num_folds):.0f} %"
    lines = [
        f"The same numbers: {result.folder / FOLDS}.",
        f"The folds' models saw {share} of the images each, and none is the final "
        "model. To train that:",
    ]
    command = command_line()
    if re.search(FOLDS_OPTION, command):
        lines.append(f"  {re.sub(FOLDS_OPTION, '', command)}")
    return "\n".join(lines)
