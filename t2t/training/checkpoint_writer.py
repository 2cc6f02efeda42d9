"""Writes checkpoints in a background thread, atomically."""

import errno
import json
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from torch import Tensor

from t2t.errors import first_line
from t2t.training.checkpoint import has_shards, ignore_single_process_warning
from t2t.training.checkpoint_files import (
    NUMBERS,
    checkpoints,
    folder_bytes,
    remove_older,
    seal,
    sync_folder,
)
from t2t.training.distributed import World, barrier
from t2t.training.logging.failure_counter import FailureCounter
from t2t.training.rendezvous import is_peer_lost
from t2t.training.state import Snapshot

NUM_KEPT = 2
FAILED = "A checkpoint could not be written"
# Part of the error of torch, which does not say why it could not write.
TORCH_WRITER = "inline_container"


class CheckpointWriter:
    """Writes snapshots into a folder one after another, never two at a time."""

    def __init__(
        self,
        folder: Path,
        world: World,
        warn: Callable[[str], None],
        is_lost: Callable[[], bool] = lambda: False,
    ) -> None:
        self.folder = folder
        self.world = world
        self.warn = warn
        self.is_lost = is_lost
        """Whether the run folder was removed, moved or replaced."""
        self.failures = FailureCounter(warn)
        self.written = threading.Event()
        self.written.set()
        self.failed = False
        """Whether the last checkpoint could not be written."""
        self.seconds = 0.0
        """How long the last checkpoint took to write."""

    def __enter__(self) -> "CheckpointWriter":
        if self.world.is_main:
            self.remove_drafts()
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()
        self.failures.close()

    def save(self, snapshot: Snapshot) -> None:
        """Copies the snapshot and returns; a thread writes the copy."""
        self.finish()
        alone = not has_shards(snapshot)
        if alone and not self.world.is_main:
            return
        copied = Snapshot(
            copy_to_cpu(snapshot.tensors), json.loads(json.dumps(snapshot.numbers))
        )
        if self.world.is_main:
            self.remove_drafts()
        if not alone:
            barrier(self.world)
        written = threading.Event()
        threading.Thread(target=self.write, args=(copied, alone, written)).start()
        self.written = written

    def finish(self) -> None:
        """Waits until nothing is being written."""
        # Not by joining the thread: before Python 3.13, a thread whose join Ctrl-C
        # interrupts counts as ended, and fails in its work when Python exits.
        self.written.wait()

    def remove_drafts(self) -> None:
        """Removes what a killed process left unfinished."""
        for draft in self.folder.glob(".writing-*"):
            shutil.rmtree(draft, ignore_errors=True)

    def draft_of(self, step: int) -> Path:
        """The temporary name of a step's checkpoint."""
        return self.folder / f".writing-{step:09d}"

    def write(self, snapshot: Snapshot, alone: bool, written: threading.Event) -> None:
        """Writes a checkpoint and removes older ones; training survives a failure."""
        step = snapshot.numbers["step"]
        started = time.monotonic()
        ignore_single_process_warning()
        try:
            self.write_or_make_room(snapshot, alone)
            if self.world.is_main:
                final = self.folder / f"step-{step:09d}"
                shutil.rmtree(final, ignore_errors=True)
                self.draft_of(step).rename(final)
                sync_folder(self.folder)
                for old in checkpoints(self.folder)[NUM_KEPT:]:
                    shutil.rmtree(old, ignore_errors=True)
            self.failed = False
            self.failures.recovered(FAILED)
        except checkpoint_errors() as error:
            self.failed = True
            if self.world.is_main:
                self.discard(step)
                # If another process is gone, training stops, and reports that itself.
                if not is_peer_lost(error):
                    self.report(error, snapshot)
        finally:
            self.seconds = time.monotonic() - started
            written.set()

    def write_or_make_room(self, snapshot: Snapshot, alone: bool) -> None:
        """Writes a draft; if only one checkpoint fits, older ones are removed first."""
        draft = self.draft_of(snapshot.numbers["step"])
        try:
            self.write_draft(snapshot, alone, draft)
        except checkpoint_errors() as error:
            if not (self.world.is_main and self.would_fit(error, snapshot)):
                raise
            shutil.rmtree(draft, ignore_errors=True)
            remove_older(self.folder, self.warn)
            if not alone:  # several processes retry with the next checkpoint
                raise
            self.write_draft(snapshot, alone, draft)

    def write_draft(self, snapshot: Snapshot, alone: bool, draft: Path) -> None:
        """Writes a checkpoint under a temporary name."""
        from torch.distributed.checkpoint.state_dict_saver import save  # slow to import

        self.check_folder()
        group = None if alone else self.world.control
        # After this returns in the main process, every process has written its shard.
        save(snapshot.tensors, checkpoint_id=draft, process_group=group, no_dist=alone)
        if self.world.is_main:
            self.check_folder()
            (draft / NUMBERS).write_text(json.dumps(snapshot.numbers))
            seal(draft)

    def check_folder(self) -> None:
        """Raises an error if the run folder is gone or something else is there."""
        lost = self.world.is_main and self.is_lost()
        if lost or not self.folder.parent.exists():  # `FolderGuard` recreates it later
            raise FileNotFoundError(errno.ENOENT, "its folder is gone")

    def discard(self, step: int) -> None:
        """Removes a draft; in a lost run folder also what was created for it."""
        shutil.rmtree(self.draft_of(step), ignore_errors=True)
        if self.is_lost():
            with suppress(OSError):  # not empty
                self.folder.rmdir()

    def would_fit(self, error: BaseException, snapshot: Snapshot) -> bool:
        """Whether removing older checkpoints would free enough disk space."""
        older = checkpoints(self.folder)[1:]
        if not older:
            return False
        if getattr(first_failure(error), "errno", None) == errno.EDQUOT:
            return True
        shutil.rmtree(self.draft_of(snapshot.numbers["step"]), ignore_errors=True)
        needed = bytes_needed(snapshot)
        free = shutil.disk_usage(self.folder).free
        return free < needed <= free + sum(map(folder_bytes, older))

    def report(self, error: BaseException, snapshot: Snapshot) -> None:
        """Warns that a checkpoint could not be written."""
        kept = [path.name for path in checkpoints(self.folder)[:1]]
        self.failures.failed(
            FAILED,
            f"The checkpoint of step {snapshot.numbers['step']} could not be written "
            f"({self.reason(error, snapshot)}); training continues, and would resume "
            f"from {kept[0] if kept else 'the start'}. Check the disk of "
            f"{self.folder}.",
        )

    def reason(self, error: BaseException, snapshot: Snapshot) -> str:
        """Why a checkpoint could not be written, in a few words."""
        failure = first_failure(error)
        with suppress(OSError):
            needed = bytes_needed(snapshot)
            free = shutil.disk_usage(self.folder).free
            # Clearer than torch's own message. By now the unfinished file may be gone.
            is_vague = TORCH_WRITER in str(failure)
            if free < needed or (is_vague and free < 2 * needed):
                return f"about {needed:,} bytes are needed and {free:,} are free"
        return first_line(failure)


def bytes_needed(snapshot: Snapshot) -> int:
    """About the size of a snapshot on a disk: its tensors, and what describes them."""
    num_bytes = sum(tensor.nbytes for tensor in snapshot.tensors.values())
    return int(1.05 * num_bytes) + 2**16


def first_failure(error: BaseException) -> BaseException:
    """The error of the first process that failed."""
    # Of several processes: a CheckpointException.
    failures = getattr(error, "failures", None)
    return next(iter(failures.values()))[0] if failures else error


def checkpoint_errors() -> tuple[type[BaseException], ...]:
    """The errors of writing a checkpoint."""
    from torch.distributed.checkpoint.api import CheckpointException

    return Exception, CheckpointException


def copy_to_cpu(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Every tensor, or this process's shard of it, copied to main memory."""
    return {
        name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()
    }
