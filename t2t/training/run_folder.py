"""A run folder: which run may write into it, and what it writes there."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from t2t.atomic import write_atomically
from t2t.config import few, to_json
from t2t.errors import UserError
from t2t.models.checkpoint_io.checkpoints import read_checkpoint
from t2t.training.changed_tables import KEY, table_checksums
from t2t.training.distributed import World, all_reduce_any
from t2t.training.environment import environment
from t2t.training.folder_lock import FolderLock
from t2t.training.recipe import Recipe
from t2t.training.run_files import (
    ALL_FILES,
    BEST,
    CHECKPOINT_FILES,
    CHECKPOINTS,
    CURVES,
    ENVIRONMENT,
    LOG,
    METRICS,
    MODEL,
    PARTIAL_FILES,
    RECIPE,
    RESULT,
    is_of_folds,
    matching_files,
    read_json,
    remove_files,
    remove_if_empty,
    visible_files,
    write_json,
)
from t2t.training.saved_run import find_result, recipe_changes
from t2t.user_code import FOLDER as CODE
from t2t.user_code import LOADED, changed_file


class RunFolder:
    """The folder of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metrics = path / METRICS
        self.checkpoints = path / CHECKPOINTS
        self.curves = path / CURVES
        self.model = path / MODEL
        self.best = path / BEST
        self.log = path / LOG
        self.lock = FolderLock(path)
        self.json_files: dict[str, dict[str, Any]] = {}
        """The JSON files written at the start, to restore a lost folder."""

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Locks the folder; a run that is refused leaves no files behind."""
        try:
            os.fsencode(self.path).decode()
        except UnicodeDecodeError:
            raise UserError(
                f"{self.path} is not UTF-8, and no model can be written there; name "
                "another --folder."
            ) from None
        with remove_if_empty(self.path):
            self.lock.acquire()
            try:
                yield
            finally:
                self.lock.release(remove=not self.is_run())

    def is_run(self) -> bool:
        """Whether the folder holds a run."""
        return os.path.exists(self.path / RECIPE)

    def is_lost(self) -> bool:
        """Whether the folder was removed, moved or replaced while training."""
        if not self.json_files:
            return False  # the run has not started
        return not self.is_run() or self.lock.read() != self.lock.token

    def recreate(self) -> None:
        """Recreates a lost folder; raises an error if another run is there."""
        is_run, token = self.is_run(), self.lock.read()
        same = is_run and read_json(self.path / RECIPE) == self.json_files[RECIPE]
        is_locked = token not in ("", self.lock.token)
        # A checkpoint that was being written may be there already.
        own = matching_files(self.path, CHECKPOINT_FILES)
        own += [self.log, self.checkpoints]
        found = (*visible_files(self.path), *visible_files(self.checkpoints))
        others = [path for path in found if path not in own]
        is_locked_by_us = bool(token) and token == self.lock.token
        is_anothers = not same or is_locked if is_run else bool(others)
        if is_anothers and not is_locked_by_us:
            raise UserError(f"{self.path} holds other files now.")
        if not self.lock.is_current():
            self.lock.acquire()
        self.lock.sign()
        try:
            for name, content in self.json_files.items():
                write_json(self.path / name, content)
            self.write_code()
        except OSError as error:
            raise self.unwritable(error) from error

    def restore_json_files(self) -> list[Path]:
        """Writes JSON files again that were removed; returns them."""
        missing = {
            self.path / name: content
            for name, content in self.json_files.items()
            if not os.path.lexists(self.path / name)
        }
        with suppress(OSError):  # a full disk: tried again at the next checkpoint
            for path, content in missing.items():
                write_json(path, content)
        return [path for path in missing if path.exists()]

    def check(self, recipe: Recipe, fresh: bool) -> None:
        """Raises an error if the folder holds anything but this run."""
        if not self.is_run() and matching_files(self.path, CHECKPOINT_FILES):
            raise UserError(
                f"{self.path} holds checkpoints, but no {RECIPE} of their run; restore "
                "it, or name another --folder."
            )
        if not self.is_run() and self.foreign_files():
            raise UserError(
                f"{self.path} holds files that are not a run's; name another --folder."
            )
        if fresh:
            check_keeps_inputs(self.path, recipe)
        else:
            self.check_same(recipe, ", or add --fresh to start over in it")

    def check_same(self, recipe: Recipe, other_ways: str = "") -> None:
        """Raises an error if the folder holds a run of another recipe."""
        if changed := self.changes(recipe):
            raise UserError(
                f"{self.path} holds a run of another recipe ({few(changed)}); name "
                f"another --folder{other_ways}."
            )
        if self.has_started() and (name := changed_file(self.path)):
            raise UserError(
                f"{name} has changed since the run in {self.path} started with "
                f"{self.path / CODE / name}. Restore it, resume with `t2t train "
                f"{self.path}`, or name another --folder{other_ways}."
            )

    def changes(self, recipe: Recipe) -> list[str]:
        """How a recipe differs from that of the run here, if one has started."""
        if not (self.is_run() and self.has_started()):
            return []
        return recipe_changes(self.path / RECIPE, recipe)

    def with_checksum(self, recipe: Recipe, found: str | None) -> Recipe:
        """The recipe with the checksum of its weights, which a resumed run kept."""
        if found is None and recipe.weights is not None and self.is_run():
            found = read_json(self.path / RECIPE).get("weights_checksum")
        if recipe.weights_checksum is not None or not isinstance(found, str):
            return recipe
        return replace(recipe, weights_checksum=found)

    def start(
        self, recipe: Recipe, settings: dict[str, Any], world: World, fresh: bool
    ) -> None:
        """Writes the recipe and the environment; `fresh` removes an earlier run."""
        try:
            if fresh:
                remove_files(self.path, ALL_FILES)
            self.lock.sign()
            tables = {KEY: found} if (found := table_checksums(recipe)) else {}
            json_files = {
                RECIPE: to_json(recipe),
                ENVIRONMENT: environment(settings, world) | tables,
            }
            for name, content in json_files.items():
                write_json(self.path / name, content)
            self.json_files = json_files
            self.write_code()
        except OSError as error:
            raise self.unwritable(error) from error

    def record(self, settings: dict[str, Any]) -> None:
        """Adds settings to environment.json."""
        try:
            content = {**self.json_files[ENVIRONMENT], **settings}
            write_json(self.path / ENVIRONMENT, content)
            self.json_files[ENVIRONMENT] = content
        except OSError as error:
            raise self.unwritable(error) from error

    def write_code(self) -> None:
        """Writes copies of the user's own files as they were run."""
        # If two files have the same name, the first one loaded is kept.
        for file in reversed(LOADED):
            (self.path / CODE).mkdir(exist_ok=True)
            write_atomically(self.path / CODE / file.path.name, file.text)

    def check_visible(self, world: World) -> None:
        """Raises an error if a node does not see the folder, which shards need."""
        (is_missing,) = all_reduce_any((not self.is_run(),), world)
        if is_missing:
            raise UserError(
                f"Not all nodes see {self.path}, so a sharded model cannot be saved "
                "there; put it on storage that all nodes share, or use "
                "--parallelism ddp."
            )

    def unwritable(self, error: OSError) -> UserError:
        """The error for a folder that cannot be written."""
        return UserError(
            f"{self.path} cannot be written ({error.strerror}); free some disk space, "
            "or name another --folder."
        )

    def has_started(self) -> bool:
        """Whether the run has left metrics, checkpoints or a result."""
        has_metrics = self.metrics.exists() and self.metrics.stat().st_size > 0
        return has_metrics or self.checkpoints.exists() or self.is_finished()

    def is_finished(self) -> bool:
        """Whether there is a result."""
        return (self.path / RESULT).exists()

    def foreign_files(self) -> list[Path]:
        """Files except folds, and the log and empty checkpoints of a lost run."""
        leftover = [self.log]
        if not visible_files(self.checkpoints):
            leftover.append(self.checkpoints)
        return [
            path
            for path in visible_files(self.path)
            if path not in leftover and not is_of_folds(path)
        ]

    def remove_partial_files(self) -> None:
        """Removes files that a killed process did not finish."""
        with suppress(OSError):
            remove_files(self.path, PARTIAL_FILES)

    def result(self) -> dict[str, Any] | None:
        """The result of the run; None if it is not finished."""
        return find_result(self.path)

    def check_model(self) -> None:
        """Raises an error if the model of a finished run is missing or damaged."""
        try:
            read_checkpoint(self.model)
        except UserError as error:
            why = str(error) if self.model.exists() else f"There is no {self.model}."
            raise UserError(
                f"{self.path} has finished training, but its model is lost. {why} "
                "Restore it, or add --fresh to train again."
            ) from error

    def finish(self, result: dict[str, Any]) -> None:
        """Writes the result; removes the checkpoints, which are no longer needed."""
        write_json(self.path / RESULT, result)
        with suppress(OSError):
            remove_files(self.path, CHECKPOINT_FILES)


def check_keeps_inputs(folder: Path, recipe: Recipe) -> None:
    """Raises an error if starting over would delete what the run starts from."""
    own = [path.resolve() for path in matching_files(folder, ALL_FILES)]
    inputs = {"weights": recipe.weights, "data": recipe.data, **recipe.task_args}
    for name, value in inputs.items():
        if not isinstance(value, str):
            continue
        path = Path(os.path.expanduser(value))
        needed = path.resolve()
        inside = needed.is_relative_to(folder.resolve())
        deleted = any(
            needed.is_relative_to(each) or each.is_relative_to(needed) for each in own
        )
        if inside and deleted and path.exists():
            raise UserError(
                f"--fresh would delete {path}, the {name} of this run; name "
                "another --folder."
            )
