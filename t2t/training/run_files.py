"""The files of a run folder: names and patterns; listing, reading and writing."""

import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from t2t.atomic import write_atomically
from t2t.errors import UserError
from t2t.user_code import FOLDER as CODE

RECIPE, ENVIRONMENT, METRICS = "recipe.json", "environment.json", "metrics.jsonl"
RESULT, CHECKPOINTS, CURVES = "result.json", "last", "curves.png"
PICTURES = "pictures.png"
MISTAKES, MISTAKES_TABLE = "mistakes.html", "mistakes.csv"
MODEL, BEST = "model.safetensors", "best.safetensors"
LOG, LOCK = "log.txt", ".lock"

FOLDS = "folds.json"
"""What a cross-validation writes beside the folders of its folds."""

STEP = "step-" + 9 * "[0-9]" + "*"
CHECKPOINT_FILES = tuple(
    f"{CHECKPOINTS}/{pattern}"
    for pattern in (STEP, f"damaged-{STEP}", ".writing-[0-9]*")
)
RUN_FILES = (
    *(MODEL, BEST, METRICS, RESULT, CURVES, PICTURES, MISTAKES, MISTAKES_TABLE),
    *(LOG, ENVIRONMENT, RECIPE),
)
PARTIAL_FILES = tuple(f".{name}.*.part" for name in RUN_FILES)
"""Files that a killed process did not finish."""
TRACKER_FILES = (
    "tensorboard/events.out.tfevents.*",
    ".wandb-id",
    *(f"wandb/{name}" for name in ("run-*", "offline-run-*", "latest-run")),
    *(f"wandb/{name}" for name in ("debug*.log", "debug*.log.*")),
)
CODE_FILES = f"{CODE}/*.py"
"""The user's own files that the run was started with."""
# The recipe comes last: until it is removed, the folder is recognised as a run's.
ALL_FILES = (*CHECKPOINT_FILES, *PARTIAL_FILES, *TRACKER_FILES, CODE_FILES, *RUN_FILES)
"""Patterns of all that a run writes into its folder."""

TYPE_NAMES = {str: "a text", int: "a whole number", float: "a number"}


def fold_name(number: int) -> str:
    """The name of a fold's run folder."""
    return f"fold{number}"


def is_of_folds(path: Path) -> bool:
    """Whether this is what a cross-validation writes into a folder."""
    return path.name == FOLDS or re.fullmatch(r"fold\d+", path.name) is not None


def matching_files(folder: Path, patterns: Iterable[str]) -> list[Path]:
    """Files in a folder that match patterns."""
    return [path for pattern in patterns for path in sorted(folder.glob(pattern))]


def remove_files(folder: Path, patterns: Iterable[str]) -> None:
    """Removes files that match patterns, and subfolders that are empty then."""
    patterns = tuple(patterns)
    for path in matching_files(folder, patterns):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    for inner in {Path(pattern).parent for pattern in patterns} - {Path()}:
        with suppress(OSError):
            (folder / inner).rmdir()


def visible_files(folder: Path) -> list[Path]:
    """Files in a folder that are not hidden; empty if there is no folder."""
    try:
        return [path for path in folder.iterdir() if not path.name.startswith(".")]
    except (FileNotFoundError, NotADirectoryError):
        return []


@contextmanager
def remove_if_empty(folder: Path) -> Iterator[None]:
    """Removes a folder and its parents at the end if they are new and still empty."""
    # A path that cannot be checked is refused when it is written.
    new = [path for path in (folder, *folder.parents) if not os.path.exists(path)]
    try:
        yield
    finally:
        for path in new:
            with suppress(OSError):
                path.rmdir()


def read_json(path: Path, types: Mapping[str, type] | None = None) -> dict[str, Any]:
    """A JSON object from a file; the values of some keys must have these types."""
    try:
        data = json.loads(path.read_text())
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise UserError(f"{path} cannot be read: {error}.") from error
    if not isinstance(data, dict):
        name = type(data).__name__
        raise UserError(f"{path} should hold a JSON object, and holds a {name}.")
    check_types(path, data, types or {})
    return data


def check_types(path: Path, data: dict[str, Any], types: Mapping[str, type]) -> None:
    """Raises an error if a value of a file's JSON object does not have its type."""
    for key, wanted in types.items():
        if not has_type(data.get(key), wanted):
            found = json.dumps(data[key])[:40] if key in data else "missing"
            raise UserError(
                f"{path} was changed or damaged: its {key!r} should be "
                f"{TYPE_NAMES[wanted]} and is {found}; correct it, or remove "
                f"{path.parent} and train again."
            )


def has_type(value: object, wanted: type) -> bool:
    """Whether a JSON value has a type; a float may be a whole number."""
    is_whole_number = wanted is float and type(value) is int
    return type(value) is wanted or is_whole_number


def write_text(path: Path, text: str) -> None:
    """Writes text to a file atomically; undecodable bytes of a name are escaped."""
    write_atomically(path, text.encode(errors="backslashreplace"))


def write_json(path: Path, data: dict[str, Any]) -> None:
    """Writes a JSON object to a file atomically."""
    write_atomically(path, (json.dumps(data, indent=1) + "\n").encode())
