"""Removing what a run wrote, and nothing else."""

import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


def written(folder: Path, patterns: Iterable[str]) -> list[Path]:
    """What lies in a folder under the names that a run writes."""
    return [path for pattern in patterns for path in sorted(folder.glob(pattern))]


def remove(folder: Path, patterns: Iterable[str]) -> None:
    """Removes what has such a name, and folders inside that stay empty by that."""
    patterns = tuple(patterns)
    for path in written(folder, patterns):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    for inner in {Path(pattern).parent for pattern in patterns} - {Path()}:
        with suppress(OSError):
            (folder / inner).rmdir()
