"""Reads what a run has written: its recipe and its result."""

import os
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any

import t2t
from t2t.config import differences, from_json, to_json
from t2t.errors import UserError
from t2t.training.recipe import Recipe
from t2t.training.run_files import (
    ENVIRONMENT,
    RECIPE,
    RESULT,
    check_types,
    read_json,
)
from t2t.user_code import offer

RENAMED_FIELDS = {
    "choices": "model_args",
    "average": "ema",
    "dropping": "token_dropping",
    "calm": "light_augment_share",
    "hold_out": "holdout",
    "objective": "task",
    "teacher": "task_args",
    "distillation_weight": "task_args",
    "distillation_temperature": "task_args",
}
"""Recipe fields of earlier versions, and their names today."""
RESULT_TYPES = {
    **dict.fromkeys(("recipe", "model", "metric", "command"), str),
    **dict.fromkeys(("parameters", "epochs", "skipped_steps"), int),
    "images_per_second": float,
    **dict.fromkeys(("train_minutes", "compile_minutes"), float),
}
"""Values that are read from a run's result, and their types."""


def read_recipe(folder: Path) -> Recipe:
    """The recipe of a run folder."""
    check_run(folder)
    return read_recipe_file(folder / RECIPE)


def read_recipe_file(path: Path) -> Recipe:
    """A recipe from a JSON file."""
    content = read_json(path)
    check_fields(path, content, "rename them in this file, or train again with --fresh")
    offer(path.parent)
    try:
        return from_json(Recipe, content)
    except UserError as error:
        raise UserError(f"{path} is not a recipe. {error}") from error


def recipe_changes(path: Path, recipe: Recipe) -> list[str]:
    """How a recipe differs from a run's, which is in a JSON file."""
    try:
        before = read_json(path)
    except UserError as error:
        raise UserError(
            f"{error} Restore it, name another --folder, or add --fresh to start over."
        ) from error
    check_fields(
        path,
        before,
        "its checkpoints cannot be resumed; name another --folder, or add --fresh "
        "to start over",
    )
    if same_data(str(before.get("data")), recipe.data):
        before["data"] = recipe.data
    if recipe.weights_checksum is None:
        before["weights_checksum"] = None
    for field in fields(Recipe):  # of a version that did not have it yet
        if field.default is not MISSING:
            before.setdefault(field.name, field.default)
        elif field.default_factory is not MISSING:
            own = field.default_factory()
            before.setdefault(field.name, to_json(own) if is_dataclass(own) else own)
    now = to_json(recipe)
    files = before["labels"].get("files"), now["labels"]["files"]
    if len(files[0] or ()) == len(files[1]) and all(map(same_data, *files)):
        before["labels"]["files"] = now["labels"]["files"]
    return differences(before, now)


def check_fields(path: Path, fields: Mapping[str, Any], what_to_do: str) -> None:
    """Raises an error if a recipe has fields that were renamed since."""
    renamed = [f"{old} → {new}" for old, new in RENAMED_FIELDS.items() if old in fields]
    if renamed:
        raise UserError(
            f"{path} was written by {version_of(path.parent)}, and recipe fields have "
            f"been renamed since ({', '.join(renamed)}): {what_to_do}."
        )


def version_of(folder: Path) -> str:
    """The version of t2t that wrote a run folder, as its environment says."""
    try:
        version = read_json(folder / ENVIRONMENT).get("t2t")
    except UserError:  # missing or damaged
        version = None
    # Fields have been renamed within a version too, before its release.
    if not isinstance(version, str) or version == t2t.__version__:
        return "an earlier version of t2t"
    return f"t2t {version}"


def read_result(folder: Path) -> dict[str, Any]:
    """The result of a finished run; raises an error if it is not finished."""
    check_run(folder)
    result = find_result(folder)
    if result is None:
        raise UserError(
            f"{folder} has not finished training; run the same `t2t train` command to "
            "resume."
        )
    if result[result["metric"]] is None:
        raise UserError(
            f"{folder} has finished training, but its {result['metric']} is not a "
            "finite number; train again, with a lower learning rate if it diverged."
        )
    return result


def read_classifier_result(folder: Path) -> dict[str, Any]:
    """The result of a finished run that learned to classify."""
    result = read_result(folder)
    if "top1" not in result:
        raise UserError(
            f"{folder} has no top-1 accuracy: its task is {result.get('task')}, and "
            "only a run that learned to classify can be shipped."
        )
    return result


def find_result(folder: Path) -> dict[str, Any] | None:
    """The result in a run folder; None if the run is not finished."""
    path = folder / RESULT
    if not path.exists():
        return None
    try:
        result = read_json(path)
    except UserError as error:
        raise UserError(
            f"{error} Restore it, or remove {folder} and train again."
        ) from error
    check_types(path, result, RESULT_TYPES)
    metric = result["metric"]
    # What was not finite is null.
    names = [key for key in (metric, f"{metric}_raw") if result.get(key, 0) is not None]
    check_types(path, result, dict.fromkeys(names, float))
    return result


def check_run(folder: Path) -> None:
    """Raises an error if a folder is not a run folder."""
    if not (folder / RECIPE).exists():
        raise UserError(f"{folder} is not a run folder: it holds no {RECIPE}.")


def same_data(given: str, own: str) -> bool:
    """Whether two paths or names mean the same data."""
    paths = [os.path.realpath(os.path.expanduser(each)) for each in (given, own)]
    return given == own or (paths[0] == paths[1] and os.path.exists(paths[0]))
