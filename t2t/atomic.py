"""Files that are there whole or not at all."""

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic_file(file: Path) -> Iterator[Path]:
    """A path to write to; only when all went well does the file appear, complete."""
    part = file.with_name(f".{file.name}.{uuid.uuid4().hex}.part")
    try:
        part.touch()
        mode = part.stat().st_mode
        yield part
        part.chmod(mode)  # as any new file: some writers leave it to the owner alone
        with part.open("rb+") as written:
            os.fsync(written.fileno())
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)


def write_atomically(file: Path, data: bytes) -> None:
    """Replaces a file by its new content at once."""
    with atomic_file(file) as part:
        part.write_bytes(data)
