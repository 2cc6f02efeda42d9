"""The checkpoints in a folder: their names, their checksums, and which are intact."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from t2t.atomic import write_atomically
from t2t.training.run_files import STEP

MANIFEST, NUMBERS = "manifest.json", "numbers.json"


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of a folder, newest first."""
    return sorted(folder.glob(STEP), reverse=True)


def checkpoint_step(checkpoint: Path) -> int:
    """The step after which a checkpoint was written."""
    return int(checkpoint.name.rpartition("-")[2])


def folder_bytes(folder: Path) -> int:
    """The bytes of the files in a folder."""
    return sum(path.stat().st_size for path in folder.iterdir())


def remove_older(folder: Path, warn: Callable[[str], None]) -> None:
    """Removes all checkpoints but the newest, to free disk space."""
    for path in checkpoints(folder)[1:]:
        shutil.rmtree(path, ignore_errors=True)
        warn(f"The older checkpoint {path.name} was removed to free disk space.")


def newest_intact(folder: Path, warn: Callable[[str], None]) -> Path | None:
    """The newest checkpoint that passes its check; damaged ones are renamed."""
    for path in checkpoints(folder):
        if is_intact(path):
            return path
        renamed = path.with_name(f"damaged-{path.name}")
        shutil.rmtree(renamed, ignore_errors=True)
        path.rename(renamed)
        warn(f"The checkpoint {path} is damaged; it was renamed to {renamed.name}.")
    return None


def seal(folder: Path) -> None:
    """Writes the size and checksum of every file, and flushes all to the disk."""
    sums = {}
    for path in sorted(folder.iterdir()):
        sums[path.name] = {"bytes": path.stat().st_size, "sha256": checksum(path)}
        with path.open("rb") as file:
            os.fsync(file.fileno())
    write_atomically(folder / MANIFEST, json.dumps(sums).encode())


def is_intact(folder: Path) -> bool:
    """Whether every file of a checkpoint has the size and checksum of its manifest."""
    try:
        sums = json.loads((folder / MANIFEST).read_text())
        return bool(sums) and all(
            (folder / name).stat().st_size == entry["bytes"]
            and checksum(folder / name) == entry["sha256"]
            for name, entry in sums.items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def checksum(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync_folder(folder: Path) -> None:
    """Flushes a folder's entries to the disk: a rename survives a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
