"""Saves the final model after every evaluation, and the result at the end."""

import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import nn

from t2t.config import to_json
from t2t.data.label_config import differs_from_default
from t2t.data.sources import Splits
from t2t.errors import UserError
from t2t.models.vit import VisionTransformer
from t2t.models.weights import save
from t2t.models.without_weights import without_weights
from t2t.tasks import task_class
from t2t.training.checkpoint_files import checkpoint_step, checkpoints, remove_older
from t2t.training.distributed import World, full_state_dict
from t2t.training.initial_state import build_model
from t2t.training.logging.failure_counter import FailureCounter
from t2t.training.recipe import Recipe
from t2t.training.retry_write import retry_write, why
from t2t.training.run_folder import RunFolder
from t2t.training.state import TrainState

FAILED = "The model could not be written"


class ModelSaver:
    """Writes model and result into the run folder, or elsewhere if that fails."""

    def __init__(
        self,
        recipe: Recipe,
        world: World,
        run_folder: RunFolder,
        splits: Splits,
        warn: Callable[[str], None],
    ) -> None:
        self.recipe, self.world, self.run_folder = recipe, world, run_folder
        self.splits, self.warn = splits, warn
        self.class_names: tuple[str, ...] = ()
        if task_class(recipe.task).needs_labels:
            self.class_names = tuple(splits.train.classes)
        self.failures = FailureCounter(warn)
        self.unsaved = ""
        """Why the last model could not be written; empty if it was."""
        self.unsaved_model: nn.Module | None = None
        """The last model, if it could not be written."""
        self.elsewhere: Path | None = None
        """The file that the model was saved to instead."""

    def save_model(self, state: TrainState) -> None:
        """Writes the model that the run would end with now; warns if that fails."""
        full = self.gather(state, best=self.recipe.keep == "best")
        if full is None:
            return
        try:
            self.write(full, self.run_folder.model)
            self.unsaved, self.unsaved_model = "", None
            self.failures.recovered(FAILED)
        except UserError as error:
            self.unsaved, self.unsaved_model = str(error), full
            self.failures.failed(FAILED, f"{error} Training continues.")

    def gather(self, train_state: TrainState, *, best: bool) -> nn.Module | None:
        """The unsharded model in rank 0, None in other processes.

        It has the weights of now, or of the best evaluation.
        """
        model = train_state.final_model
        is_kept = best and bool(train_state.best.weights)
        weights = train_state.best.weights if is_kept else model.state_dict()
        state = full_state_dict(weights, self.world)
        if not self.world.is_main:
            return None
        with without_weights():
            if isinstance(model, VisionTransformer):
                # `positions` may differ from the recipe's.
                full: nn.Module = VisionTransformer(model.config)
            else:
                full = build_model(self.recipe, len(self.class_names))
        full.load_state_dict(state, assign=True)
        return full

    def write(self, model: nn.Module, file: Path) -> None:
        """Writes a model with its class names and preprocessing."""
        if file.parent == self.run_folder.path and self.run_folder.is_lost():
            raise UserError(
                f"{file} could not be written: its folder was removed or moved."
            )
        extra = {
            **file_fields(self.recipe),
            "evaluated_on": self.splits.val.fingerprint(),
        }
        names = self.class_names
        save(model, file, name=self.recipe.model, class_names=names, extra=extra)

    def save_best(
        self, state: TrainState, is_stopped: Callable[[], bool] = lambda: False
    ) -> None:
        """Writes the model of the best evaluation beside that of the last, if better.

        Like `retry`, it waits for disk space; without, the run ends without it.
        """
        file = self.run_folder.best
        if self.recipe.keep == "best" or state.best.is_latest:
            if self.world.is_main:
                with suppress(OSError):  # of a run that was killed at its end
                    file.unlink(missing_ok=True)
            return
        full = self.gather(state, best=True)
        if full is None:
            return
        with suppress(UserError):
            self.write(full, file)
            return
        remove_older(self.run_folder.checkpoints, self.warn)
        error = self.write_patiently(lambda: self.write(full, file), is_stopped)
        if error is not None:
            self.warn(
                f"The weights of the best evaluation could not be written to {file} "
                f"({why(error)}); those of the last one are saved."
            )

    def save_elsewhere(self, model: nn.Module) -> None:
        """Writes the model to the first writable folder outside the run's folder."""
        name = self.run_folder.path.resolve().name
        for folder in fallback_folders():
            file = folder / f"{name}.safetensors"
            number = 1
            while file.exists():
                number += 1
                file = folder / f"{name}-{number}.safetensors"
            with suppress(UserError, OSError):
                self.write(model, file)
                self.elsewhere = file
                return

    def retry(self, is_stopped: Callable[[], bool]) -> None:
        """Writes the last model if that failed before, waiting for disk space.

        Older checkpoints are removed to free disk space. Stops if `is_stopped`.
        """
        if self.unsaved_model is None:
            return
        model = self.unsaved_model
        remove_older(self.run_folder.checkpoints, self.warn)
        with suppress(UserError):
            self.write_again(model)
            return
        self.save_elsewhere(model)
        if self.elsewhere is not None:
            self.warn(f"The model was saved to {self.elsewhere} for now.")
        if self.write_patiently(lambda: self.write_again(model), is_stopped) is None:
            if self.elsewhere is not None:
                self.elsewhere.unlink(missing_ok=True)
                self.elsewhere = None
            self.warn(f"The model was saved to {self.run_folder.model}.")

    def write_again(self, model: nn.Module) -> None:
        """Writes the last model into the run's folder, or raises an error."""
        self.write(model, self.run_folder.model)
        self.unsaved, self.unsaved_model = "", None

    def write_patiently(
        self, attempt: Callable[[], None], is_stopped: Callable[[], bool]
    ) -> Exception | None:
        """Waits for disk space if a write fails; returns the last error, if any."""
        return retry_write(attempt, self.run_folder.path, self.warn, is_stopped)

    def finish(
        self, summary: dict[str, Any], is_stopped: Callable[[], bool] = lambda: False
    ) -> None:
        """Writes the result, which marks the run as finished."""
        self.failures.close()
        error: Exception | None = None
        if self.unsaved:
            error = UserError(self.unsaved)
        else:
            error = self.write_patiently(
                lambda: self.run_folder.finish(summary), is_stopped
            )
        if error is None:
            return
        reason = getattr(error, "strerror", None)
        failed = f"{self.run_folder.path} ({reason})." if reason else str(error)
        raise UserError(
            f"Training is done, but its result could not be written: {failed} "
            f"{self.where_to_find(summary['steps'])}"
        ) from error

    def where_to_find(self, num_steps: int) -> str:
        """Where the model is, if it was saved, and how to resume."""
        sentences = []
        model = self.elsewhere or (None if self.unsaved else self.run_folder.model)
        if model is not None:
            sentences.append(f"The model is saved in {model}.")
        newest = next(iter(checkpoints(self.run_folder.checkpoints)), None)
        if newest is None:
            sentences.append(
                "There is no checkpoint: free some disk space and train again."
            )
        else:
            sentences.append(
                f"The checkpoint of step {checkpoint_step(newest):,} of {num_steps:,} "
                f"is in {self.run_folder.checkpoints}: free some disk space and run "
                "the same command to resume."
            )
        return " ".join(sentences)


def file_fields(recipe: Recipe) -> dict[str, Any]:
    """The fields of a model's file on preprocessing, data and labels."""
    fields: dict[str, Any] = {
        "image_size": list(recipe.image_size),
        "channels": recipe.channels,
        "mean": list(recipe.augmentation.mean),
        "std": list(recipe.augmentation.std),
        "crop_fraction": recipe.crop.evaluation_fraction,
        "data": recipe.data,
        "seed": recipe.seed,
    }
    if task_class(recipe.task).takes_label_sets:
        fields["multilabel"] = True
    if differs_from_default(recipe.labels):
        fields["labels"] = to_json(recipe.labels)
    return fields


def fallback_folders() -> list[Path]:
    """Writable folders to save a model to if the run's folder fails."""
    folders = [Path.cwd, Path.home, lambda: Path(tempfile.gettempdir())]
    found = []
    for find in folders:
        with suppress(OSError, RuntimeError):  # it may not exist
            found.append(find())
    return [folder for folder in found if os.access(folder, os.W_OK)]
