"""Cross-validation: a recipe trained on every fold of its data, one after another."""

import math
import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from t2t.data.sources import Splits
from t2t.data.sources.splitting import fold_of
from t2t.errors import LocalError, UserError
from t2t.formatting import counted
from t2t.tasks import Metric
from t2t.tasks.registry import task_class
from t2t.torchrun import env_count
from t2t.training.recipe import Recipe
from t2t.training.result import Result
from t2t.training.run_files import FOLDS, fold_name, write_json


def train_folds(
    recipe: Recipe,
    num_folds: int,
    folder: Path,
    train: Callable[..., Result],
    splits: Splits | None = None,
    notes: Sequence[str] = (),
) -> Result:
    """Trains every fold into a folder of its own, by calls of `train`.

    Finished folds are not trained again. Without a stop, the summary holds the mean
    and the standard deviation of every metric, and `folds.json` the same.
    """
    results: list[Result] = []
    for number in range(1, num_folds + 1):
        own = None
        if splits is not None:
            own = fold_of(splits, number, num_folds, recipe.seed)
        result = train(
            replace(recipe, fold=(number, num_folds)),
            folder=folder / fold_name(number),
            splits=own,
            notes=[f"Fold {number} of {num_folds}.", *notes],
        )
        results.append(result)
        if not result.finished:
            return Result(folder, False, {}, folds=tuple(results))
    summary = summarize_folds(recipe, results)
    try:
        write_json(folder / FOLDS, summary)
    except OSError as error:
        raise LocalError(
            f"{folder / FOLDS} cannot be written ({error.strerror}); all folds are "
            "trained: free some disk space and run the same command again."
        ) from error
    return Result(
        folder,
        True,
        summary,
        already_finished=all(each.already_finished for each in results),
        stop_requested=any(each.stop_requested for each in results),
        folds=tuple(results),
        notes=tuple(dict.fromkeys(note for each in results for note in each.notes)),
    )


def check_folds(recipe: Recipe, num_folds: int) -> None:
    """Raises an error for folds that cannot be trained."""
    if num_folds < 2:
        raise UserError(f"--folds {num_folds} is too small: give 2 or more, such as 5.")
    if recipe.fold is not None:
        raise UserError(
            f"--folds trains all folds, and {recipe.name} has fold="
            f"{list(recipe.fold)} already; leave one of them out."
        )
    if (world_size := env_count("WORLD_SIZE")) > 1:
        raise UserError(
            f"--folds trains one fold after another in one process, but WORLD_SIZE="
            f"{world_size} is set; start it without torchrun, or start single folds "
            f"with --set fold=1,{num_folds}."
        )


def summarize_folds(recipe: Recipe, results: Sequence[Result]) -> dict[str, Any]:
    """Mean, standard deviation and values of every metric over the folds."""
    names = metrics_of(recipe, results)
    values = {name: [each.summary[name] for each in results] for name in names}
    summary: dict[str, Any] = {
        "recipe": recipe.name,
        "data": recipe.data,
        "num_folds": len(results),
        "metric": results[0].summary["metric"],
    }
    for name, each in values.items():
        known = [value for value in each if value is not None]
        complete = len(known) == len(each)
        summary[name] = statistics.fmean(known) if complete else None
        summary[f"{name}_std"] = statistics.stdev(known) if complete else None
        summary[f"{name}_folds"] = each
    summary["train_minutes"] = math.fsum(
        each.summary["train_minutes"] for each in results
    )
    summary["folders"] = [os.fspath(each.folder) for each in results]
    return summary


def metrics_of(recipe: Recipe, results: Sequence[Result]) -> list[str]:
    """The names of the metrics that every fold has."""
    metrics: Sequence[Metric] = task_class(recipe.task).metrics
    primary = results[0].summary["metric"]
    names = dict.fromkeys([primary, *(each.name for each in metrics)])
    return [name for name in names if all(name in each.summary for each in results)]


def folds_note(num_folds: int) -> str:
    """A sentence for the estimate of a single fold."""
    return f"This is one of {counted(num_folds, 'fold')}; all take {num_folds} times."
