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
_BRACES = (
    "braces hold a range such as {000..009} or a list such as {train,val}, which may "
    "hold further braces, as in {train-{000..009},val}.tar."
)
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
    """Whether this is a pattern with braces, for several names, and not a path."""
    found = re.search(r"\{[^{}]*(\.\.|,)[^{}]*\}", pattern)
    return found is not None and not os.path.exists(os.path.expanduser(pattern))


def expand_braces(pattern: str) -> list[str]:
    """All names of a pattern such as {train-{000..009},val}.tar, in a shell's order."""
    return _expand(pattern, pattern)


def _expand(text: str, pattern: str) -> list[str]:
    """All names of a part of a pattern."""
    start = text.find("{")
    if start < 0:
        return [text]
    parts, end = _parts_in_braces(text, start, pattern)
    if len(parts) > 1:
        choices = [name for part in parts for name in _expand(part, pattern)]
    else:
        choices = _numbers(parts[0], pattern)
    tails = _expand(text[end:], pattern)
    _check_number(len(choices) * len(tails), pattern)
    return [text[:start] + choice + tail for choice in choices for tail in tails]


def _parts_in_braces(text: str, start: int, pattern: str) -> tuple[list[str], int]:
    """What the commas of the brace at `start` separate, and where its end is."""
    depth, parts, begin = 0, [], start + 1
    for position in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        is_end = depth == 0
        if is_end or (depth == 1 and text[position] == ","):
            parts.append(text[begin:position])
            begin = position + 1
        if is_end:
            return parts, begin
    raise UserError(f"{pattern} has a {{ without its }}: {_BRACES}")


def _numbers(inner: str, pattern: str) -> list[str]:
    """The numbers of a range; other words in braces are a name with braces."""
    found = re.fullmatch(r"(\d+)\.\.(\d+)", inner)
    if found is None:
        if ".." in inner and "{" not in inner:
            raise UserError(
                f"{pattern} has {{{inner}}}, which is not a range of whole numbers: "
                f"{_BRACES}"
            )
        return [f"{{{name}}}" for name in _expand(inner, pattern)]
    first, last = int(found[1]), int(found[2])
    _check_number(abs(last - first) + 1, pattern)
    step = 1 if first <= last else -1  # as a shell counts
    width = len(found[1])
    return [str(n).zfill(width) for n in range(first, last + step, step)]


def _check_number(num_names: int, pattern: str) -> None:
    if num_names > _MAX_NAMES:
        raise UserError(
            f"{pattern} is a pattern for {num_names:,} names: give {_MAX_NAMES:,} or "
            "fewer."
        )
