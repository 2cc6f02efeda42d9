"""Atomic writes: a file is complete or does not exist."""

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic_file(file: Path) -> Iterator[Path]:
    """A temporary path to write to, which replaces `file` when the block succeeds."""
    part = file.with_name(f".{file.name}.{uuid.uuid4().hex}.part")
    try:
        part.touch()
        mode = part.stat().st_mode
        yield part
        part.chmod(mode)  # the default mode: some writers allow only the owner
        with part.open("rb+") as written:
            os.fsync(written.fileno())
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)


def write_atomically(file: Path, data: bytes) -> None:
    """Replaces the content of a file in one step."""
    with atomic_file(file) as part:
        part.write_bytes(data)
