"""The lock of a run folder: one process trains in it at a time."""

import fcntl
import os
import uuid
from contextlib import suppress
from os.path import samestat
from pathlib import Path

from t2t.errors import UserError
from t2t.training.run_files import LOCK


class FolderLock:
    """A locked file in a folder; the system releases it even after kill -9."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / LOCK
        self.handle = -1
        self.token = ""
        """What this process wrote into the file, to recognise it."""

    def acquire(self) -> None:
        """Creates the folder if needed and locks it; releases an earlier lock."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise UserError(
                f"{self.folder} cannot be written ({error.strerror}); name another "
                "--folder."
            ) from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            raise UserError(
                f"Another process is training in {self.folder}; wait for it, or name "
                "another --folder."
            ) from None
        except OSError:
            pass  # Some network storage has no locks: then nothing guards the folder.
        if self.handle >= 0:
            os.close(self.handle)
        self.handle = handle

    def release(self, remove: bool) -> None:
        """Releases the lock, and removes its file if asked to."""
        if remove:
            with suppress(OSError):
                self.path.unlink()
        # Last: the removed file must not be another process's.
        os.close(self.handle)

    def sign(self) -> None:
        """Writes a new token into the file."""
        self.token = uuid.uuid4().hex
        try:
            os.truncate(self.handle, 0)
            os.pwrite(self.handle, self.token.encode(), 0)
        except OSError:  # a full disk: then only the recipe is compared
            self.token = ""

    def read(self) -> str:
        """The token in the file; empty if there is no file."""
        try:
            return self.path.read_text(errors="replace")
        except OSError:
            return ""

    def is_current(self) -> bool:
        """Whether the file in the folder is the one that is locked."""
        return self.path.exists() and samestat(os.fstat(self.handle), self.path.stat())
