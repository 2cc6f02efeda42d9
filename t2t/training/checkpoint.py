"""Checkpoints: whole or not there, checked, written in the background."""

import errno
import hashlib
import json
import os
import shutil
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor

from t2t.atomic import write_atomically
from t2t.errors import UserError, first_line
from t2t.models.checkpoint_io.published import POSITIONS
from t2t.models.zoo import CONFIGS
from t2t.training.distributed import World, from_main, wait_for_all
from t2t.training.logging.failures import Failures
from t2t.training.recipe import Recipe
from t2t.training.rendezvous import is_peer_lost
from t2t.training.run_folder import STEP
from t2t.training.state import State, TrainState

NUM_KEPT = 2
FAILED = "A checkpoint could not be written"
MANIFEST, NUMBERS = "manifest.json", "numbers.json"


class CheckpointWriter:
    """Writes states into a folder one after another, never two at a time."""

    def __init__(self, folder: Path, world: World, warn: Callable[[str], None]) -> None:
        self.folder = folder
        self.world = world
        self.warn = warn
        self.failures = Failures(warn)
        self.written = threading.Event()
        self.written.set()
        self.failed = False
        """Whether the last one could not be written."""

    def __enter__(self) -> "CheckpointWriter":
        if self.world.is_main:
            self.sweep()
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()
        self.failures.close()

    def save(self, state: State) -> None:
        """Takes a copy of the state and returns; a thread writes the copy."""
        self.finish()
        alone = not is_sharded(state)
        if alone and not self.world.is_main:
            return
        copied = State(
            copy_to_cpu(state.tensors), json.loads(json.dumps(state.numbers))
        )
        if self.world.is_main:
            self.sweep()
        if not alone:
            wait_for_all(self.world)
        written = threading.Event()
        threading.Thread(target=self.write, args=(copied, alone, written)).start()
        self.written = written

    def finish(self) -> None:
        """Returns when nothing is being written here."""
        # Not by joining the thread: before Python 3.13, one whose join Ctrl-C cuts
        # short is taken for ended, and breaks down in its work when Python ends.
        self.written.wait()

    def sweep(self) -> None:
        """Removes what a killed process had begun to write."""
        for draft in self.folder.glob(".writing-*"):
            shutil.rmtree(draft, ignore_errors=True)

    def write(self, state: State, alone: bool, written: threading.Event) -> None:
        """Writes under another name, seals, renames, and then removes older ones."""
        step = state.numbers["step"]
        final = self.folder / f"step-{step:09d}"
        draft = self.folder / f".writing-{step:09d}"
        ignore_lone_saving()
        try:
            try:
                self.write_draft(state, alone, draft)
            except (Exception, CheckpointException) as error:
                # If only one fits, keep the newer. Several processes retry at the next.
                if not (self.world.is_main and self.gives_way(error, state)):
                    raise
                shutil.rmtree(draft, ignore_errors=True)
                give_up_older(self.folder, self.warn)
                if not alone:
                    raise
                self.write_draft(state, alone, draft)
            if self.world.is_main:
                shutil.rmtree(final, ignore_errors=True)
                draft.rename(final)
                sync_folder(self.folder)
                for old in checkpoints(self.folder)[NUM_KEPT:]:
                    shutil.rmtree(old, ignore_errors=True)
            self.failed = False
            self.failures.over(FAILED)
        except (Exception, CheckpointException) as error:  # whatever: training goes on
            self.failed = True
            if self.world.is_main:
                shutil.rmtree(draft, ignore_errors=True)
            # Where another process is gone, training does not go on, and says so.
            if self.world.is_main and not is_peer_lost(error):
                kept = [path.name for path in checkpoints(self.folder)[:1]]
                start = kept[0] if kept else "the start"
                self.failures.report(
                    FAILED,
                    f"The checkpoint of step {step} could not be written "
                    f"({self.reason(error, state)}); training goes on, and would "
                    f"resume from {start}. Check the disk of {self.folder}.",
                )
        finally:
            written.set()

    def write_draft(self, state: State, alone: bool, draft: Path) -> None:
        """Writes a checkpoint under a temporary name."""
        if not self.folder.parent.exists():  # `keep_folder` recreates it later
            raise FileNotFoundError(errno.ENOENT, "its folder is gone")
        group = None if alone else self.world.control
        # When this returns in the leading process, all have written their shards.
        save(state.tensors, checkpoint_id=draft, process_group=group, no_dist=alone)
        if self.world.is_main:
            (draft / NUMBERS).write_text(json.dumps(state.numbers))
            seal(draft)

    def gives_way(self, error: BaseException, state: State) -> bool:
        """Whether removing older checkpoints would make enough room."""
        older = checkpoints(self.folder)[1:]
        if not older:
            return False
        if getattr(system_error(error), "errno", None) == errno.EDQUOT:
            return True
        draft = self.folder / f".writing-{state.numbers['step']:09d}"
        shutil.rmtree(draft, ignore_errors=True)
        needed = 1.05 * sum(tensor.nbytes for tensor in state.tensors.values()) + 2**16
        free = shutil.disk_usage(self.folder).free
        return free < needed <= free + sum(map(size_of, older))

    def reason(self, error: BaseException, state: State) -> str:
        """The first system error behind an error, in a few words."""
        with suppress(OSError):
            needed = sum(tensor.nbytes for tensor in state.tensors.values())
            free = shutil.disk_usage(self.folder).free
            if free < needed:  # of which torch tells in words that nobody understands
                return f"{needed:,} bytes are needed and {free:,} are free"
        return first_line(system_error(error))


def system_error(error: BaseException) -> BaseException:
    """The error of the first process that failed."""
    if isinstance(error, CheckpointException):
        return next(iter(error.failures.values()))[0]
    return error


def size_of(folder: Path) -> int:
    """The bytes of a checkpoint."""
    return sum(path.stat().st_size for path in folder.iterdir())


def step_of(checkpoint: Path) -> int:
    """The step that a checkpoint was written after."""
    return int(checkpoint.name.rpartition("-")[2])


def give_up_older(folder: Path, warn: Callable[[str], None]) -> None:
    """Removes all checkpoints but the newest, to make room, and says so."""
    for path in checkpoints(folder)[1:]:
        shutil.rmtree(path, ignore_errors=True)
        warn(f"The older checkpoint {path.name} was removed to make room.")


def find_checkpoint(
    folder: Path, world: World, warn: Callable[[str], None]
) -> Path | None:
    """The checkpoint that all processes go on from, where there is a whole one."""
    found = from_main(world, lambda: newest_whole(folder, warn))
    if found is not None and not found.exists():
        raise UserError(
            f"This machine does not see {found}, from which the run resumes; put the "
            "run's folder where all machines see it."
        )
    return found


def as_resumed(recipe: Recipe, checkpoint: Path) -> Recipe:
    """The recipe of what a checkpoint is read into, where all weights come from it.

    Those that the run began with may be gone by now. Positions that came with them
    are the checkpoint's too, where the recipe's own would be computed.
    """
    own = CONFIGS[recipe.model].positions if recipe.model in CONFIGS else ""
    model_args = dict(recipe.model_args)
    stored = FileSystemReader(checkpoint).read_metadata().state_dict_metadata
    if (
        model_args.get("positions", own) == "sinusoid"
        and f"model/{POSITIONS}" in stored
    ):
        model_args["positions"] = "fixed"
    return replace(recipe, weights=None, model_args=model_args)


def resume(
    run: TrainState, checkpoint: Path, world: World, warn: Callable[[str], None]
) -> dict[str, Any]:
    """Restores a checkpoint; returns its state of the log."""
    check_data(checkpoint, run, warn)
    return read(checkpoint, run, world).get("log", {})


def check_data(path: Path, run: TrainState, warn: Callable[[str], None]) -> None:
    """Refuses a checkpoint of other classes; tells where the images are others."""
    before = json.loads((path / NUMBERS).read_text()).get("data")
    if not before:
        return  # as earlier versions wrote it
    were, are = before["classes"], run.data["classes"]
    if were != are:
        gone = [f"{name!r} is gone" for name in were if name not in are]
        new = [f"{name!r} is new" for name in are if name not in were]
        what = ", ".join([*gone, *new][:4]) or "their order is another"
        raise UserError(
            f"The data's classes have changed since {path} was written: {what}. Put "
            "the data back as it was, or add --fresh to start over."
        )
    now = run.data["fingerprint"]
    if before.get("fingerprint", now) != now:
        warn(
            f"The {run.data['num_images']:,} images to train on are not the "
            f"{before['num_images']:,} that they were: the run goes on, if not as it "
            "would have; where data is split by a seed, it may now be judged by images "
            "that it was trained on."
        )


def read(path: Path, run: TrainState, world: World) -> dict[str, Any]:
    """Loads a checkpoint into a run, sharded as that run is; returns its numbers."""
    numbers = json.loads((path / NUMBERS).read_text())
    tensors = run.weights()
    stored = FileSystemReader(path).read_metadata().state_dict_metadata
    missing = [name for name in tensors if name not in stored]
    if missing:
        raise UserError(
            f"{path} holds no {missing[0]}, so it is of another program; add --fresh "
            "to start over."
        )
    for key, entry in stored.items():
        if key not in tensors and isinstance(entry, TensorStorageMetadata):
            tensors[key] = run.empty_like(key, entry.size, entry.properties.dtype)
    state = State(tensors, numbers)
    alone = not is_sharded(state)
    ignore_lone_saving()
    load(
        state.tensors,
        checkpoint_id=path,
        process_group=None if alone else world.control,
        no_dist=alone,
    )
    run.restore(state)
    return numbers


def ignore_lone_saving() -> None:
    """Silences a warning: one process saves and loads alone by intention here."""
    warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavail")


def is_sharded(state: State) -> bool:
    """Whether each process holds only its part."""
    return any(isinstance(tensor, DTensor) for tensor in state.tensors.values())


def seal(folder: Path) -> None:
    """Writes down every file's size and checksum, and has all of it on the disk."""
    sums = {}
    for path in sorted(folder.iterdir()):
        sums[path.name] = {"bytes": path.stat().st_size, "sha256": checksum(path)}
        with path.open("rb") as file:
            os.fsync(file.fileno())
    write_atomically(folder / MANIFEST, json.dumps(sums).encode())


def is_whole(folder: Path) -> bool:
    """Whether every file of a checkpoint is as it was sealed."""
    try:
        sums = json.loads((folder / MANIFEST).read_text())
        return bool(sums) and all(
            (folder / name).stat().st_size == entry["bytes"]
            and checksum(folder / name) == entry["sha256"]
            for name, entry in sums.items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of a folder, newest first."""
    return sorted(folder.glob(STEP), reverse=True)


def newest_whole(folder: Path, warn: Callable[[str], None]) -> Path | None:
    """The newest checkpoint that passes its check; damaged ones are named."""
    for path in checkpoints(folder):
        if is_whole(path):
            return path
        aside = path.with_name(f"damaged-{path.name}")
        shutil.rmtree(aside, ignore_errors=True)
        path.rename(aside)
        warn(f"The checkpoint {path} is damaged; it is left out, as {aside.name}.")
    return None


def checksum(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync_folder(folder: Path) -> None:
    """Has a folder's names on the disk, so that a rename survives a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def copy_to_cpu(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Every tensor, or this process's shard of it, copied to main memory."""
    return {
        name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()
    }
