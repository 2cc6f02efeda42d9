"""Checkpoints: whole or not there, checked, written in the background."""

import hashlib
import json
import os
import shutil
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.tensor import DTensor

from t2t.training.parallel import Processes, wait_for_all

NUM_KEPT = 2
MANIFEST = "manifest.json"


class CheckpointWriter:
    """Writes states into a folder one after another, never two at a time."""

    def __init__(
        self, folder: Path, team: Processes, tell: Callable[[str], None]
    ) -> None:
        self.folder = folder
        self.team = team
        self.tell = tell
        self.thread: threading.Thread | None = None

    def save(self, state: dict[str, Any], step: int) -> None:
        """Takes a copy of the state and returns; a thread writes the copy."""
        self.finish()
        if any(isinstance(leaf, DTensor) for leaf in leaves(state)):
            # Every process holds a shard, and all write theirs together.
            self.write(state, step)
            wait_for_all(self.team)
        elif self.team.leads:
            copied = copy_to_cpu(state)
            self.thread = threading.Thread(target=self.write, args=(copied, step))
            self.thread.start()

    def finish(self) -> None:
        """Returns when nothing is being written."""
        if self.thread is not None:
            self.thread.join()
            self.thread = None

    def write(self, state: dict[str, Any], step: int) -> None:
        """Writes under another name, seals, renames, and then removes older ones."""
        final = self.folder / f"step-{step:09d}"
        draft = self.folder / f".writing-{step:09d}"
        try:
            if self.team.leads:
                shutil.rmtree(draft, ignore_errors=True)
                draft.mkdir(parents=True)
            alone = not any(isinstance(leaf, DTensor) for leaf in leaves(state))
            if not alone:
                wait_for_all(self.team)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # alone by intention, not by mistake
                dcp.save(state, checkpoint_id=draft, no_dist=alone)
            if self.team.leads:
                seal(draft)
                shutil.rmtree(final, ignore_errors=True)
                draft.rename(final)
                sync_folder(self.folder)
                for old in checkpoints(self.folder)[NUM_KEPT:]:
                    shutil.rmtree(old, ignore_errors=True)
        except (OSError, dcp.api.CheckpointException) as error:
            shutil.rmtree(draft, ignore_errors=True)
            kept = [path.name for path in checkpoints(self.folder)[:1]]
            self.tell(
                f"The checkpoint of step {step} could not be written "
                f"({reason(error)}); training goes on, and would resume from "
                f"{kept[0] if kept else 'the start'}. Free some space in {self.folder}."
            )


def reason(error: BaseException) -> str:
    """The first system error behind an error, in a few words."""
    if isinstance(error, dcp.api.CheckpointException):
        error = next(iter(error.failures.values()))[0]
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def seal(folder: Path) -> None:
    """Writes down every file's size and checksum, and has all of it on the disk."""
    sums = {}
    for path in sorted(folder.iterdir()):
        sums[path.name] = {"bytes": path.stat().st_size, "sha256": checksum(path)}
        with path.open("rb") as file:
            os.fsync(file.fileno())
    with (folder / MANIFEST).open("w") as file:
        json.dump(sums, file)
        file.flush()
        os.fsync(file.fileno())


def is_whole(folder: Path) -> bool:
    """Whether every file of a checkpoint is as it was sealed."""
    try:
        sums = json.loads((folder / MANIFEST).read_text())
        return bool(sums) and all(
            (folder / name).stat().st_size == entry["bytes"]
            and checksum(folder / name) == entry["sha256"]
            for name, entry in sums.items()
        )
    except (OSError, ValueError, KeyError):
        return False


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of a folder, newest first."""
    return sorted(folder.glob("step-*"), reverse=True)


def newest_whole(folder: Path, tell: Callable[[str], None]) -> Path | None:
    """The newest checkpoint that passes its check; damaged ones are named."""
    for path in checkpoints(folder):
        if is_whole(path):
            return path
        tell(f"The checkpoint {path} is damaged and is left out.")
    return None


def read(path: Path, state: dict[str, Any]) -> None:
    """Fills a state of the same make with what a checkpoint holds."""
    alone = not any(isinstance(leaf, DTensor) for leaf in leaves(state))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.load(state, checkpoint_id=path, no_dist=alone)


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


def leaves(state: Any) -> list[Any]:
    """Everything in nested dicts and lists."""
    if isinstance(state, dict):
        return [leaf for value in state.values() for leaf in leaves(value)]
    if isinstance(state, list | tuple):
        return [leaf for value in state for leaf in leaves(value)]
    return [state]


def copy_to_cpu(state: Any) -> Any:
    """The state with every tensor copied to main memory."""
    if isinstance(state, Tensor):
        return state.detach().to("cpu", copy=True)
    if isinstance(state, dict):
        return {key: copy_to_cpu(value) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(copy_to_cpu(value) for value in state)
    return state
