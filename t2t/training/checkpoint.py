"""Resumes a run from a checkpoint."""

import json
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from t2t.errors import UserError
from t2t.models.checkpoint_io.published import POSITIONS
from t2t.models.shards import is_dtensor
from t2t.models.zoo import CONFIGS
from t2t.training.checkpoint_files import NUMBERS, newest_intact
from t2t.training.distributed import World, broadcast_from_main
from t2t.training.recipe import Recipe
from t2t.training.state import Snapshot, TrainState


def find_checkpoint(
    folder: Path, world: World, warn: Callable[[str], None]
) -> Path | None:
    """The checkpoint that all processes resume from, if there is an intact one."""
    found = broadcast_from_main(world, lambda: newest_intact(folder, warn))
    if found is not None and not found.exists():
        raise UserError(
            f"This node does not see {found}, from which the run resumes; put the "
            "run's folder on storage that all nodes share."
        )
    return found


def recipe_to_resume(recipe: Recipe, checkpoint: Path) -> Recipe:
    """The recipe of a model to load a checkpoint into, without initial weights.

    The initial weights may be gone by now. Positions that came with them are in the
    checkpoint, while the recipe's own would be computed.
    """
    own = CONFIGS[recipe.model].positions if recipe.model in CONFIGS else ""
    model_args = dict(recipe.model_args)
    stored = stored_entries(checkpoint)
    if (
        model_args.get("positions", own) == "sinusoid"
        and f"model/{POSITIONS}" in stored
    ):
        model_args["positions"] = "fixed"
    return replace(recipe, weights=None, model_args=model_args)


def resume(
    state: TrainState, checkpoint: Path, world: World, warn: Callable[[str], None]
) -> dict[str, Any]:
    """Restores a checkpoint; returns the logger's state in it."""
    check_data(checkpoint, state, warn)
    check_files(checkpoint, state)
    return load_checkpoint(checkpoint, state, world).get("log", {})


def check_data(path: Path, state: TrainState, warn: Callable[[str], None]) -> None:
    """Raises an error if the data's classes have changed; warns of other images."""
    before = json.loads((path / NUMBERS).read_text()).get("data")
    if not before:
        return  # written by an earlier version
    were, are = before["classes"], state.data["classes"]
    if were != are:
        removed = [f"{name!r} is missing" for name in were if name not in are]
        added = [f"{name!r} is new" for name in are if name not in were]
        changes = ", ".join([*removed, *added][:4]) or "their order has changed"
        raise UserError(
            f"The data's classes have changed since {path} was written: {changes}. "
            "Restore the data, or add --fresh to start over."
        )
    now = state.data["fingerprint"]
    if before.get("fingerprint", now) != now:
        warn(
            f"The training images have changed ({before['num_images']:,} before, "
            f"{state.data['num_images']:,} now). The run resumes, but its result will "
            "differ; if the data is split by a seed, it may be validated on images "
            "that it was trained on."
        )


def check_files(path: Path, state: TrainState) -> None:
    """Raises an error if a file that the checkpoint builds on has changed."""
    before = json.loads((path / NUMBERS).read_text()).get("files", {})
    for name, file in state.task.files.items():
        known = before.get(name, {}).get("checksum", file.checksum)
        if known != file.checksum:
            raise UserError(
                f"The {name} {file.path} has changed since {path} was written: restore "
                f"the weights with the checksum {known}, or add --fresh to start over."
            )


def load_checkpoint(path: Path, state: TrainState, world: World) -> dict[str, Any]:
    """Loads a checkpoint into a state, sharded as the state is; returns its numbers."""
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata
    from torch.distributed.checkpoint.state_dict_loader import load

    numbers = json.loads((path / NUMBERS).read_text())
    tensors = state.weights()
    stored = stored_entries(path)
    missing = [name for name in tensors if name not in stored]
    if missing:
        raise UserError(
            f"{path} holds no {missing[0]}: another version of t2t wrote it; add "
            "--fresh to start over."
        )
    for key, entry in stored.items():
        if key not in tensors and isinstance(entry, TensorStorageMetadata):
            tensors[key] = state.empty_like(key, entry.size, entry.properties.dtype)
    snapshot = Snapshot(tensors, numbers)
    alone = not has_shards(snapshot)
    ignore_single_process_warning()
    load(
        snapshot.tensors,
        checkpoint_id=path,
        process_group=None if alone else world.control,
        no_dist=alone,
    )
    state.restore(snapshot)
    return numbers


def stored_entries(path: Path) -> dict[str, Any]:
    """The entries of a checkpoint by name."""
    # Importing it takes longer than all of t2t, and a new run does not need it.
    from torch.distributed.checkpoint.filesystem import FileSystemReader

    return FileSystemReader(path).read_metadata().state_dict_metadata


def ignore_single_process_warning() -> None:
    """Silences a warning: here a single process saves and loads on purpose."""
    warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavail")


def has_shards(snapshot: Snapshot) -> bool:
    """Whether each process holds only its part of the tensors."""
    return any(is_dtensor(tensor) for tensor in snapshot.tensors.values())
