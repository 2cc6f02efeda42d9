"""Random access to the bytes of files, on a disk or behind a URL."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from t2t.data.image_files import is_url
from t2t.errors import UserError, machine_error

# Seconds to wait before a remote request is tried again.
PAUSES = (0.5, 2.0, 8.0)
AIOHTTP_ERRORS = "aiohttp.client_exceptions"


class LocalFile:
    """A file on a disk that several threads can read."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_RDONLY)

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)

    def read(self, offset: int, size: int) -> bytes:
        data = os.pread(self._descriptor, size, offset)
        while len(data) < size:
            more = os.pread(self._descriptor, size - len(data), offset + len(data))
            if not more:
                raise OSError(f"{self.path} ends before byte {offset + size}")
            data += more
        return data

    def read_all(self) -> bytes:
        return self.read(0, os.fstat(self._descriptor).st_size)

    def open_stream(self) -> Any:
        """A file object to read it once, in order."""
        return open(self.path, "rb")

    def stamp(self) -> list[int | str]:
        status = os.fstat(self._descriptor)
        return [status.st_size, status.st_mtime_ns]


class RemoteFile:
    """A file behind a URL: each read is one request, retried a few times."""

    def __init__(self, url: str) -> None:
        self.path = url
        self._system, self._inner = _filesystem(url)

    def read(self, offset: int, size: int) -> bytes:
        data: bytes = _retry(
            lambda: self._system.cat_file(self._inner, start=offset, end=offset + size),
            self.path,
        )
        if len(data) > size:  # the server ignores ranges and sends the whole file
            data = data[offset : offset + size]
        if len(data) != size:
            raise OSError(f"{self.path} ends before byte {offset + size}")
        return data

    def copy_to(self, path: Path) -> None:
        """Downloads the whole file."""
        self._system.get_file(self._inner, str(path))

    def read_all(self) -> bytes:
        data: bytes = _retry(lambda: self._system.cat_file(self._inner), self.path)
        return data

    def open_stream(self) -> Any:
        """A file object that reads far ahead, to read it once, in order."""
        return self._system.open(self._inner, "rb", block_size=1 << 24)

    def stamp(self) -> list[int | str]:
        info = _retry(lambda: self._system.info(self._inner), self.path)
        when = [
            str(info[key])
            for key in ("ETag", "etag", "mtime", "LastModified", "last_modified")
            if info.get(key)
        ]
        return [int(info["size"] or 0), *when[:1]]


def _retry(request: Callable[[], Any], url: str) -> Any:
    """The response to a request, retried if the network fails."""
    for pause in (*PAUSES, None):
        try:
            return request()
        # Every protocol has its own errors, and few of them are OSErrors.
        except Exception as error:
            reason = _reason(error)
            if isinstance(reason, FileNotFoundError):
                raise
            if pause is None:
                raise ConnectionError(f"{url} cannot be read ({reason})") from error
            time.sleep(pause)
    raise AssertionError("the last try returns or raises")


def _reason(error: BaseException) -> BaseException:
    """What went wrong; fsspec says "not found" too if a web server does not answer."""
    cause = error.__cause__
    if cause is None or not isinstance(error, FileNotFoundError):
        return error
    of_network = isinstance(cause, OSError) or type(cause).__module__ == AIOHTTP_ERRORS
    is_missing = isinstance(cause, FileNotFoundError) or (
        getattr(cause, "status", None) in (404, 410)
    )
    return cause if of_network and not is_missing else error


def open_storage(path: str) -> LocalFile | RemoteFile:
    """The file at a path or URL."""
    try:
        return RemoteFile(path) if is_url(path) else LocalFile(path)
    except FileNotFoundError as error:
        raise UserError(f"There is no file {path}.") from error


def unopened(path: str, error: OSError) -> UserError:
    """The error for a data file that cannot be opened."""
    reason = os.strerror(error.errno) if error.errno else str(error)
    return machine_error(path, error) or UserError(
        f"{path} cannot be read ({reason}): fix that, or move it out of the data."
    )


def list_files(folder: str) -> list[str]:
    """The files in a folder, as paths or URLs."""
    if not is_url(folder):
        with os.scandir(folder or ".") as entries:
            paths = [str(Path(entry.path)) for entry in entries]
        # A broken link is kept, to raise an error when it is opened.
        return sorted(p for p in paths if os.path.isfile(p) or not os.path.exists(p))
    system, inner = _filesystem(folder)
    found = _retry(lambda: system.ls(inner, detail=False), folder)
    return sorted(system.unstrip_protocol(path) for path in found)


def _filesystem(url: str) -> tuple[Any, str]:
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise UserError(f"Reading {url} needs fsspec: pip install fsspec.") from error
    try:
        system, inner = url_to_fs(url)
    except (ValueError, ImportError) as error:
        raise UserError(f"{url} cannot be reached ({error}).") from error
    return system, inner
