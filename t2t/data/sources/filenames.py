"""Names of data files: their splits, and patterns for several files."""

import os
import re
from collections.abc import Iterable

from t2t.errors import UserError

# The names of splits in use; the first that exists is used.
SPLIT_NAMES = {
    "train": ("train", "training"),
    "val": ("val", "valid", "validation", "dev"),
    "test": ("test", "testing", "eval"),
}
# More are a typing error, and would fill the memory.
_MAX_NAMES = 1_000_000
_SPLITS = {name: split for split, names in SPLIT_NAMES.items() for name in names}


def split_of(path: str) -> str | None:
    """The split that a file, or else a folder it is in, is named for."""
    for part in reversed(re.split(r"[/\\]", path)):
        for word in re.split(r"[^A-Za-z]+", os.path.splitext(part)[0].lower()):
            if word in _SPLITS:
                return _SPLITS[word]
    return None


def group_by_split(paths: Iterable[str], root: str) -> dict[str, list[str]]:
    """Files by split, with "all" for those that are named for none."""
    groups: dict[str, list[str]] = {}
    for path in sorted(paths):
        inner = path.removeprefix(root)
        groups.setdefault(split_of(inner) or "all", []).append(path)
    return groups


def num_missing(paths: Iterable[str]) -> int:
    """How many files are missing, by names such as 00001-of-00004."""
    totals = set()
    num = 0
    for path in paths:
        num += 1
        if found := re.search(r"-of-(\d+)", os.path.basename(path)):
            totals.add(int(found[1]))
    return max(max(totals) - num, 0) if len(totals) == 1 else 0


def has_braces(pattern: str) -> bool:
    """Whether this is a pattern with braces, for several names."""
    return re.search(r"\{[^{}]*(\.\.|,)[^{}]*\}", pattern) is not None


def expand_braces(pattern: str) -> list[str]:
    """All names of a pattern such as train-{000..009}.tar or {train,val}.tar."""
    found = re.search(r"\{([^{}]*)\}", pattern)
    if found is None:
        return [pattern]
    head, tail = pattern[: found.start()], pattern[found.end() :]
    if numbers := re.fullmatch(r"(\d+)\.\.(\d+)", found[1]):
        first, last = int(numbers[1]), int(numbers[2])
        if abs(last - first) >= _MAX_NAMES:
            raise UserError(
                f"{pattern} is a pattern for {abs(last - first) + 1:,} names: give "
                f"{_MAX_NAMES:,} or fewer."
            )
        step = 1 if first <= last else -1  # as a shell counts
        width = len(numbers[1])
        choices = [str(n).zfill(width) for n in range(first, last + step, step)]
    else:
        choices = found[1].split(",")
    return [head + choice + rest for choice in choices for rest in expand_braces(tail)]
