"""`--minutes`, and the default time limit on a CPU."""

import os
from collections.abc import Sequence
from dataclasses import replace

from t2t.config import set_value, to_json
from t2t.data.sources import Splits
from t2t.errors import UserError
from t2t.recipes.choose import RecipeOptions, choose_recipe
from t2t.recipes.default import Scale, default_recipe, scales
from t2t.recipes.open_recipe import DIGITS, UNNAMED
from t2t.recipes.time_budget import Budget, Make, TimedChoice
from t2t.training.distributed import find_device
from t2t.training.forecast.speed import measure_speed
from t2t.training.loaders import open_data
from t2t.training.recipe import Recipe
from t2t.training.run_files import RECIPE
from t2t.training.run_folder import RunFolder
from t2t.training.runtime import Runtime
from t2t.training.saved_run import read_recipe_file

CPU_MINUTES = 50.0
"""The time of a default run on a CPU."""
MAX_MINUTES = 100_000


def needs_budget(
    recipe: Recipe | str,
    chosen: Recipe,
    options: RecipeOptions,
    settings: Sequence[str],
    minutes: float | None,
    runtime: Runtime,
    folds: int | None = None,
) -> bool:
    """Whether the time decides on the epochs: if asked for, or by default on a CPU."""
    epochs = options.epochs is not None or set_value("epochs", settings) is not None
    if minutes is not None:
        check_minutes(minutes, epochs)
        if folds is not None:
            raise UserError(
                "--minutes is the time of one run, and --folds trains several; give "
                "--epochs with --folds."
            )
        return True
    is_default = recipe == UNNAMED and chosen.data != DIGITS
    on_cpu = find_device(runtime.device).type == "cpu"
    is_one = folds is None and not is_distributed()
    return is_default and on_cpu and not epochs and is_one


def check_minutes(minutes: float, epochs: bool) -> None:
    """Raises an error for a time out of range, with epochs, or under torchrun."""
    if not 0 < minutes <= MAX_MINUTES:
        raise UserError(
            f"--minutes {minutes:g} is not possible: give more than 0 and at most "
            f"{MAX_MINUTES:,}."
        )
    if epochs:
        raise UserError(
            "--minutes and epochs are both given, and each sets the number of epochs; "
            "leave one of them out."
        )
    if is_distributed():
        raise UserError(
            "--minutes times one process, and torchrun starts several; give --epochs "
            "(`t2t plan` predicts the time on many GPUs)."
        )


def is_distributed() -> bool:
    """Whether torchrun has started several processes."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def fit_budget(
    asked: tuple[Recipe | str, RecipeOptions, Sequence[str]],
    chosen: Recipe,
    budget: Budget,
    runtime: Runtime,
    splits: Splits | None,
    run_folder: RunFolder | None,
) -> tuple[Recipe, list[str], Splits]:
    """The recipe that fits into a time, why, and its images.

    A run that has started keeps its epochs and its scale. `asked` is what `chosen` was
    chosen by.
    """
    recipe, options, settings = asked
    splits = splits or open_data(chosen)
    is_ours = recipe == UNNAMED and chosen.name == "own"
    fixed = ("model", "image_size", "model_args")
    is_free = is_ours and not any(asked_for(name, options, settings) for name in fixed)
    choices = scales(splits.train) if is_free else []

    def make(scale: Scale | None, epochs: int) -> Recipe:
        own = replace(options, epochs=epochs)
        base = recipe
        if scale is not None:
            base = default_recipe(
                chosen.data, None, chosen.labels, epochs=epochs, scale=scale
            )
        made = choose_recipe(base, own, settings)[0]
        return replace(made, labels=chosen.labels, task=chosen.task)

    if run_folder is not None and run_folder.is_run() and run_folder.has_started():
        return as_before(run_folder, make, choices), [], splits
    choice = TimedChoice(
        budget,
        make,
        choices,
        chosen.epochs,
        len(splits.train),
        lambda each: measure_speed(each, runtime, splits),
        by_macs=find_device(runtime.device).type == "cpu",
    )
    found, why = choice.recipe()
    return found, why, splits


def asked_for(name: str, options: RecipeOptions, settings: Sequence[str]) -> bool:
    """Whether an option or a setting decides on a field of the recipe."""
    by_option = options.by_field().get(name) is not None
    return by_option or any(each.startswith(name) for each in settings)


def as_before(run_folder: RunFolder, make: Make, scales: list[Scale]) -> Recipe:
    """The recipe with the epochs and the scale of the run in a folder."""
    before = read_recipe_file(run_folder.path / RECIPE)
    candidates = [make(scale, before.epochs) for scale in scales]
    candidates = candidates or [make(None, before.epochs)]
    for each in candidates:
        args = to_json(each)["model_args"]
        same = (each.model, each.image_size) == (before.model, before.image_size)
        if same and args == to_json(before)["model_args"]:
            return replace(each, evaluate_every=before.evaluate_every)
    return candidates[0]
