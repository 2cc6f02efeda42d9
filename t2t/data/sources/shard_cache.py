"""Remote shards, copied whole to this machine and shared by all its processes."""

import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from filelock import FileLock, Timeout

from t2t.atomic import atomic_file
from t2t.cache import cache_folder
from t2t.data.sources.storage import RemoteFile
from t2t.errors import DISK_FULL, LocalError, UserError, first_line

SIZE_VARIABLE = "T2T_SHARD_CACHE_GB"
PATIENCE_SECONDS = 600.0
"""How long an outage of the network is waited out."""
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
SILENT_SECONDS = 10.0
"""How long an outage lasts before it is reported."""
_POLL_SECONDS = 0.5


def ignore(sentence: str) -> None:
    """Reports nothing."""


@dataclass
class Waiting:
    """How long to wait for a shard, where to log it, and when to give up early."""

    warn: Callable[[str], None] = ignore
    is_cancelled: Callable[[], bool] = lambda: False
    seconds: float = field(default_factory=lambda: PATIENCE_SECONDS)
    started: float = field(default_factory=time.monotonic)
    last_said: float = 0.0

    def over(self) -> bool:
        """Whether the time is over; raises CancelledError if it is cancelled."""
        if self.is_cancelled():
            raise CancelledError
        return time.monotonic() - self.started > self.seconds

    def pause(self, seconds: float) -> None:
        """Sleeps; raises CancelledError if it is cancelled meanwhile."""
        until = min(time.monotonic() + seconds, self.started + self.seconds)
        while (left := until - time.monotonic()) > 0 and not self.over():
            time.sleep(min(left, _POLL_SECONDS))

    def report(self, url: str, error: Exception) -> None:
        """Says once a minute what is waited for."""
        now = time.monotonic()
        if now - self.started < SILENT_SECONDS or now - self.last_said < 60:
            return
        self.last_said = now
        minutes = max(self.seconds - (now - self.started), 0) / 60
        self.warn(
            f"{url} cannot be read ({first_line(error)}); waiting up to "
            f"{minutes:.0f} more minutes for the network."
        )


class ShardCache:
    """A folder of whole shards; the ones that were not used longest are removed."""

    def __init__(self) -> None:
        self.folder = cache_folder() / "shards"
        self.max_bytes = default_size(self.folder)

    def path(self, url: str, stamp: Iterable[int | str]) -> Path:
        """Where the copy of a shard is; another one if the shard has changed."""
        name = "\n".join((url, *map(str, stamp)))
        return self.folder / f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.tar"

    def fetch(self, remote: RemoteFile, stamp: list[int | str], wait: Waiting) -> Path:
        """The local copy of a shard, downloaded unless it is there.

        Other threads and processes that want it wait for the same download.
        """
        path = self.path(remote.path, stamp)
        while not self._is_there(path):
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = FileLock(path.with_suffix(".lock"), thread_local=False)
            try:
                with lock.acquire(timeout=_POLL_SECONDS):
                    if not self._is_there(path):
                        self._download(remote, path, int(stamp[0]), wait)
            except Timeout:
                if wait.over():
                    raise given_up(remote.path, wait) from None
        return path

    def _is_there(self, path: Path) -> bool:
        """Whether a copy is complete; records that it was used."""
        try:
            os.utime(path)
        except OSError:
            return False
        return True

    def _download(
        self, remote: RemoteFile, path: Path, size: int, wait: Waiting
    ) -> None:
        pause = FIRST_PAUSE
        while True:
            self._make_room(size)
            try:
                with atomic_file(path) as part:
                    remote.copy_to(part)
                    check_size(remote.path, part, size)
                return
            except (FileNotFoundError, PermissionError, UserError):
                raise
            except Exception as error:  # every protocol has its own
                if getattr(error, "errno", None) in DISK_FULL:
                    raise self._disk_full(size) from error
                wait.report(remote.path, error)
                if wait.over():
                    raise given_up(remote.path, wait, error) from error
            wait.pause(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _make_room(self, size: int) -> None:
        """Removes old copies until a new one fits."""
        with FileLock(self.folder / "cache.lock"):
            copies = []
            for path in self.folder.glob("*.tar"):
                with suppress(OSError):  # another process has removed it
                    found = path.stat()
                    copies.append((found.st_mtime, found.st_size, path))
            total = sum(each[1] for each in copies) + size
            for _, bytes_freed, path in sorted(copies):
                if total <= self.max_bytes:
                    return
                path.unlink(missing_ok=True)
                total -= bytes_freed

    def _disk_full(self, size: int) -> LocalError:
        return LocalError(
            f"{self.folder} has no space for a shard of {size / 1e9:.1f} GB: free "
            "some, set T2T_CACHE to a folder on a larger disk, or "
            f"{SIZE_VARIABLE} to less."
        )


def default_size(folder: Path) -> int:
    """The bytes that the cache may take: half of what is free or its own already."""
    given = os.environ.get(SIZE_VARIABLE)
    if given is not None:
        try:
            size = float(given)
        except ValueError:
            size = 0.0
        if not size > 0:
            raise UserError(
                f"{SIZE_VARIABLE}={given!r} is not a number of gigabytes: give one, "
                "such as 200."
            )
        return int(size * 1e9)
    own = 0
    for path in folder.glob("*.tar"):
        with suppress(OSError):
            own += path.stat().st_size
    existing = next(each for each in (folder, *folder.parents) if each.exists())
    return (shutil.disk_usage(existing).free + own) // 2


def check_size(url: str, file: Path, size: int) -> None:
    """Raises an error if a download is incomplete."""
    found = file.stat().st_size
    if found != size:
        raise ConnectionError(f"{found:,} of {size:,} bytes of {url} were received")


def given_up(url: str, wait: Waiting, error: Exception | None = None) -> LocalError:
    """The error after an outage that lasted too long."""
    reason = f" ({first_line(error)})" if error is not None else ""
    return LocalError(
        f"{url} could not be read for {wait.seconds / 60:.0f} minutes{reason}: is "
        "there a network? Run the same command to resume."
    )
