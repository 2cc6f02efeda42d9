"""The page after training: result, curves, a few predictions, what to run next."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from torch import Tensor

from t2t.data.decoding.damage import DamagedImage
from t2t.data.sources import Source
from t2t.data.sources.find_splits import find_splits
from t2t.errors import UserError, on_one_line
from t2t.formatting import duration, pace
from t2t.models.trained import load_trained
from t2t.serving.predictor import Prediction, Predictor
from t2t.tasks import Metric, task_class
from t2t.tasks.base import VAL_LOSS
from t2t.tasks.registry import primary_metric
from t2t.training.forecast.advice import FEW_TO_VALIDATE, confidence_interval
from t2t.training.loaders import open_data
from t2t.training.logging.metrics import read_rows
from t2t.training.run_files import BEST, CURVES, METRICS, MISTAKES, MODEL, PICTURES
from t2t.training.saved_run import read_recipe

BARS = "▁▂▃▄▅▆▇█"
NUM_EXAMPLES = 6
WIDTH = 40


def train_summary(folder: Path, summary: dict[str, Any]) -> RenderableType:
    """The whole page; predictions and classes only if the task has labels."""
    recipe = read_recipe(folder)
    task = task_class(recipe.task)
    has_ema = recipe.ema.decay > 0
    primary = primary_metric(recipe.task, summary["metric"])
    return Group(
        Text(),
        Text(result_line(summary, primary, has_ema=has_ema)),
        Text(),
        curves(folder / METRICS, primary),
        *(examples(folder) if task.needs_labels else []),
        *(Text(f"{note}\n") for note in notes(folder, summary)),
        Text(
            files_and_commands(
                folder, has_head=task.needs_labels, several=task.takes_label_sets
            )
        ),
    )


def result_line(summary: dict[str, Any], metric: Metric, *, has_ema: bool) -> str:
    """The primary metric and the speed of a run."""
    skipped = summary["skipped_steps"]
    score = metric.show(summary[metric.name])
    if has_ema:
        score += f" (EMA), {metric.show(summary[f'{metric.name}_raw'])} (raw)"
    return (
        f"{summary['recipe']}: {metric.label} {score}\n"
        f"after {duration(60 * summary['train_minutes'])} of training at "
        f"{pace(summary['images_per_second'])}"
        + (f"; {skipped} steps were skipped." if skipped else ".")
    )


def curves(metrics: Path, metric: Metric) -> RenderableType:
    """Losses and the primary metric over the run, a sparkline each."""
    try:
        rows = read_rows(metrics)
    except OSError:  # removed or not readable: the summary is shown anyway
        rows = []
    table = Table(box=None, show_header=False, pad_edge=False)
    shown = {each.name: each for each in (VAL_LOSS, metric)}
    names = {"loss": "loss"} | {key: axis_label(each) for key, each in shown.items()}
    for key, name in names.items():
        values = [row[key] for row in rows if row.get(key) is not None]
        if values:
            ends = f"{values[0]:.4g} → {values[-1]:.4g}"
            table.add_row(name, Text(sparkline(values), style="cyan"), ends)
    return Group(table, Text())


def axis_label(metric: Metric) -> str:
    """A metric's label with its unit."""
    return f"{metric.label},{metric.unit}" if metric.unit else metric.label


def sparkline(values: list[float]) -> str:
    """Numbers as bars of eight heights."""
    num = min(WIDTH, len(values))
    chosen = [
        values[round(i * (len(values) - 1) / max(num - 1, 1))] for i in range(num)
    ]
    low, high = min(chosen), max(chosen)
    span = (high - low) or 1.0
    return "".join(BARS[int((value - low) / span * 7.999)] for value in chosen)


def examples(folder: Path) -> list[RenderableType]:
    """A few validation images with their true and predicted classes."""
    try:
        source = open_data(read_recipe(folder)).val
        predictor = Predictor(load_trained(folder))
        step = max(1, len(source) // NUM_EXAMPLES)
        chosen = range(0, len(source), step)[:NUM_EXAMPLES]
        images = (read_or_damaged(source, index) for index in chosen)
        top = None if predictor.trained.is_multilabel else 1
        predictions = [*predictor.predict_each(images, top=top)]
    except UserError:  # the data is no longer there: the rest is shown anyway
        return []
    if predictor.trained.is_multilabel:
        return [multilabel_examples(source, chosen, predictions), Text()]
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for heading in ("validation image", "true", "predicted", "confidence"):
        table.add_column(heading, no_wrap=True)
    for index, prediction in zip(chosen, predictions, strict=True):
        if isinstance(prediction, DamagedImage):  # already reported
            continue
        truth = source.classes[int(source.labels[index])]
        best = prediction.best
        style = "green" if best.class_name == truth else "red"
        table.add_row(
            Text(on_one_line(source.name(index))),
            Text(on_one_line(truth)),
            Text(on_one_line(best.name), style=style),
            f"{100 * best.probability:.0f} %",
        )
    return [table, Text()] if table.row_count else []


def multilabel_examples(
    source: Source,
    chosen: Sequence[int],
    predictions: Sequence[Prediction | DamagedImage],
) -> Table:
    """Images with their true labels, and those that the model predicts."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for heading in ("validation image", "true", "predicted"):
        table.add_column(heading, overflow="fold")
    for index, prediction in zip(chosen, predictions, strict=True):
        if isinstance(prediction, DamagedImage):  # already reported
            continue
        true = {source.classes[number] for number in source.classes_of(index)}
        found = {each.class_name for each in prediction.classes}
        style = "green" if found == true else "red"
        table.add_row(
            Text(on_one_line(source.name(index))),
            Text(on_one_line(", ".join(sorted(true)) or "none")),
            Text(on_one_line(", ".join(sorted(found)) or "none"), style=style),
        )
    return table


def read_or_damaged(source: Source, index: int) -> bytes | Tensor | DamagedImage:
    """The encoded image or its pixels, or why it cannot be read."""
    try:
        return source.read(index)
    except DamagedImage as damaged:
        return damaged


def notes(folder: Path, summary: dict[str, Any]) -> list[str]:
    """Sentences on the confidence interval, the weights and an unused test split."""
    found = []
    counts = [row["num_images"] for row in read_rows(folder / METRICS) if "top1" in row]
    num_images = counts[-1] if counts and isinstance(counts[-1], int) else None
    if num_images and num_images < FEW_TO_VALIDATE:
        low, high = confidence_interval(summary["top1"], num_images)
        found.append(
            f"{num_images:,} validation images: the 95 % confidence interval of top-1 "
            f"is {low:.1f} to {high:.1f} %."
        )
    task = read_recipe(folder).task
    metric = primary_metric(task, summary.get("metric"))
    found += choice_notes(folder, summary, metric)
    if has_unused_test(folder) and task_class(task).needs_labels:
        command = f"t2t eval {shlex.quote(str(folder))} --split test"
        found.append(f"The data has a test split that this run did not use: {command}")
    return found


def choice_notes(folder: Path, summary: dict[str, Any], metric: Metric) -> list[str]:
    """Sentences on an early stop, and on the best evaluation if it is not the last."""
    found = []
    if stopped := summary.get("stopped_early"):
        found.append(stopped)
    best, last = summary.get("best_epoch"), summary.get("last_epoch")
    if best is None or best == last:
        return found
    best_score, last_score = (
        metric.show(summary[name]) for name in ("best_score", "last_score")
    )
    chosen = "chosen by the validation images, on which its score is too optimistic"
    if summary["keep"] == "best":
        found.append(
            f"These are the weights of epoch {best}, {chosen}; the last epoch ({last}) "
            f"had {last_score}."
        )
    elif (folder / BEST).exists():
        found.append(
            f"Epoch {best} had {best_score}: its weights are in {BEST}, {chosen}."
        )
    return found


def has_unused_test(folder: Path) -> bool:
    """Whether the data of a run has a test split that was not used for validation."""
    recipe = read_recipe(folder)
    try:
        splits = find_splits(recipe.data, label_config=recipe.labels).openers
    except UserError:  # the data is no longer there
        return False
    return "test" in splits and ("val" in splits or recipe.holdout > 0)


def files_and_commands(
    folder: Path, *, has_head: bool = True, several: bool = False
) -> str:
    """The files of the run and the commands to run next."""
    quoted = shlex.quote(str(folder))
    files = {
        MODEL: "the model, ready to use",
        BEST: "the model of the best evaluation",
        CURVES: "losses, metrics and learning rate over the steps",
        METRICS: "the same as numbers",
        PICTURES: "what the task saw and predicted",
        MISTAKES: "most confident mistakes, likely wrong labels, near-duplicates",
    }
    rows = {
        str(folder / name): what
        for name, what in files.items()
        if (folder / name).exists()
    }
    has_model = (folder / MODEL).exists()
    if has_model and not has_head:
        rows[f"t2t probe {quoted} --data LABELLED"] = (
            "score its features on images with labels"
        )
        tune = f"t2t train --from {quoted} --data LABELLED"
        rows[tune] = "fine-tune it on images with labels"
    if has_model and has_head:
        what = "average precision" if several else "accuracy and confusions"
        rows[f"t2t eval {quoted}"] = f"{what} of every class"
        if not several and not (folder / MISTAKES).exists():
            page = f"t2t eval {quoted} --report {MISTAKES}"
            rows[page] = "most confident mistakes, likely wrong labels, near-duplicates"
        rows[f"t2t predict {quoted} IMAGE..."] = "classify your own images"
    width = max(map(len, rows), default=0)
    return "\n".join(f"  {key:<{width}}   {value}" for key, value in rows.items())
