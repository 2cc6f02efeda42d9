"""What the names of data files tell: their split, and which files a pattern means."""

import os
import re
from collections.abc import Iterable

from t2t.errors import UserError

# What people call their splits; the first that is there is taken.
SPLIT_NAMES = {
    "train": ("train", "training"),
    "val": ("val", "valid", "validation", "dev"),
    "test": ("test", "testing", "eval"),
}
# More are a slip of the finger, and would fill the memory.
_MOST_NAMES = 1_000_000
_SPLITS = {name: split for split, names in SPLIT_NAMES.items() for name in names}


def split_of(path: str) -> str | None:
    """The split that a file's name, or else a folder it is in, speaks of."""
    for part in reversed(re.split(r"[/\\]", path)):
        for word in re.split(r"[^A-Za-z]+", os.path.splitext(part)[0].lower()):
            if word in _SPLITS:
                return _SPLITS[word]
    return None


def group_by_split(paths: Iterable[str], root: str) -> dict[str, list[str]]:
    """Files by the split they belong to, or all as "all" where none is named."""
    groups: dict[str, list[str]] = {}
    for path in sorted(paths):
        inner = path.removeprefix(root)
        groups.setdefault(split_of(inner) or "all", []).append(path)
    return groups


def num_missing(paths: Iterable[str]) -> int:
    """How many files are missing by their own count, as in 00001-of-00004."""
    totals = set()
    num = 0
    for path in paths:
        num += 1
        if found := re.search(r"-of-(\d+)", os.path.basename(path)):
            totals.add(int(found[1]))
    return max(max(totals) - num, 0) if len(totals) == 1 else 0


def has_braces(pattern: str) -> bool:
    """Whether a pattern stands for several names."""
    return re.search(r"\{[^{}]*(\.\.|,)[^{}]*\}", pattern) is not None


def expand_braces(pattern: str) -> list[str]:
    """All names of a pattern such as train-{000..009}.tar or {train,val}.tar."""
    found = re.search(r"\{([^{}]*)\}", pattern)
    if found is None:
        return [pattern]
    head, tail = pattern[: found.start()], pattern[found.end() :]
    if numbers := re.fullmatch(r"(\d+)\.\.(\d+)", found[1]):
        first, last = int(numbers[1]), int(numbers[2])
        if abs(last - first) >= _MOST_NAMES:
            raise UserError(
                f"{pattern} stands for {abs(last - first) + 1:,} names: give "
                f"{_MOST_NAMES:,} or fewer."
            )
        step = 1 if first <= last else -1  # as a shell counts
        width = len(numbers[1])
        choices = [str(n).zfill(width) for n in range(first, last + step, step)]
    else:
        choices = found[1].split(",")
    return [head + choice + rest for choice in choices for rest in expand_braces(tail)]
