"""metrics.jsonl: one line of JSON per row, each written completely and once."""

import errno
import json
import os
from contextlib import suppress
from os.path import samestat
from pathlib import Path
from typing import Any

from t2t.atomic import write_atomically

LARGEST = 1e300
"""Larger numbers, infinity and NaN are rejected."""


class MetricsFile:
    """A file to which whole lines are appended, each by one system call."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.handle = -1
        self.unwritten = b""
        """Lines that could not be written yet because the disk is full."""

    def open_until(self, step: int, num_steps: int) -> list[dict[str, Any]]:
        """Opens the file without the rows that a resumed run writes again.

        After the last of `num_steps`, that is its evaluation. Returns the rows left.
        """
        kept = [
            row
            for row in read_rows(self.path)
            if row["step"] <= step
            and not ("epoch" in row and row["step"] == step >= num_steps)
        ]
        lines = "".join(json.dumps(row) + "\n" for row in kept)
        write_atomically(self.path, lines.encode())
        self.handle = os.open(self.path, os.O_RDWR | os.O_APPEND)
        return kept

    def is_lost(self) -> bool:
        """Whether the file was removed or replaced since it was opened."""
        try:
            return not samestat(os.fstat(self.handle), self.path.stat())
        except OSError:
            return True

    def recreate(self) -> None:
        """Writes all lines to a new file after the file was removed."""
        lines = os.pread(self.handle, os.fstat(self.handle).st_size, 0)
        write_atomically(self.path, lines)
        handle = os.open(self.path, os.O_RDWR | os.O_APPEND)
        os.close(self.handle)
        self.handle = handle

    def add(self, row: dict[str, Any]) -> None:
        """Adds a line; if the disk is full, it is written with the next."""
        self.unwritten += (json.dumps(row) + "\n").encode()
        self.flush()

    def flush(self) -> None:
        """Writes the lines that are not written yet, all or none of them."""
        if not self.unwritten:
            return
        size = os.fstat(self.handle).st_size
        try:
            if os.write(self.handle, self.unwritten) < len(self.unwritten):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        except OSError:
            os.ftruncate(self.handle, size)
            raise
        self.unwritten = b""

    def close(self) -> None:
        """Closes the file."""
        if self.handle >= 0:
            with suppress(OSError):
                self.flush()
            os.close(self.handle)
            self.handle = -1


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a metrics file; invalid lines are skipped."""
    rows: list[dict[str, Any]] = []
    if not path.exists():
        return rows
    for line in path.read_text(errors="replace").splitlines():
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if is_row(row):
            rows.append(row)
    return rows


def is_row(row: object) -> bool:
    """Whether a row has a step, and only numbers."""
    if not isinstance(row, dict) or type(row.get("step")) is not int:
        return False
    return all(is_number(value) for value in row.values())


def is_number(value: object) -> bool:
    """Whether a value is a finite number, or null, which replaces one that is not."""
    if value is None:
        return True
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) < LARGEST
