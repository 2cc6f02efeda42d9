"""Removes files that a run wrote, and no others."""

import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


def written(folder: Path, patterns: Iterable[str]) -> list[Path]:
    """Files in a folder that match patterns."""
    return [path for pattern in patterns for path in sorted(folder.glob(pattern))]


def remove(folder: Path, patterns: Iterable[str]) -> None:
    """Removes files that match patterns, and subfolders that are empty then."""
    patterns = tuple(patterns)
    for path in written(folder, patterns):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    for inner in {Path(pattern).parent for pattern in patterns} - {Path()}:
        with suppress(OSError):
            (folder / inner).rmdir()
