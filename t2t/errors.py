"""Errors that a user can fix, each one sentence."""

import errno
import math
import os
import re
from collections.abc import Iterable, Mapping
from typing import TypeVar
from unicodedata import category

Choice = TypeVar("Choice")

DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""No space, a quota that is used up, or a file above `ulimit -f`."""

_FILES = "allow more open files (ulimit -n), or try {less}"
_MEMORY = "leave more memory free, or try {less}"
_DISK = "check the disk or network that holds it, and repeat the command"
# Errors of the machine, whichever file is read. A bad sector (EIO), missing permission
# and a missing file are errors of that file.
_MACHINE_ERRORS = {
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), _FILES),
    errno.ENOMEM: _MEMORY,
    **dict.fromkeys(
        (errno.ESTALE, errno.ENOTCONN, errno.ETIMEDOUT, errno.EHOSTDOWN), _DISK
    ),
}


class UserError(ValueError):
    """Says what was given, what is allowed and what to do; shown in one sentence."""


class LocalError(UserError):
    """An error of a single process, which prints it whatever its rank."""


class ReportedError(UserError):
    """An error that another process prints."""


def machine_error(
    name: str, error: BaseException, less: str = "fewer --workers"
) -> LocalError | None:
    """The error if reading a file failed because of the machine, else None.

    `less` names an option that lowers what the command needs.
    """
    if isinstance(error, LocalError):
        return LocalError(str(error))
    if isinstance(error, ConnectionError):  # its message names the address
        return LocalError(f"{error}: is there a network?")
    number = getattr(error, "errno", None)
    if isinstance(error, MemoryError):
        number = errno.ENOMEM
    if number not in _MACHINE_ERRORS:
        return None
    return LocalError(
        f"{on_one_line(name) or 'An image'} was not read ({os.strerror(number)}), "
        f"not because of the file itself: {_MACHINE_ERRORS[number].format(less=less)}."
    )


def suggest(word: str, allowed: Iterable[str]) -> str:
    """A sentence to append, with the closest names, or all names if they are few."""
    names = sorted({*allowed})
    if found := close_matches(word, names):
        return f" Did you mean {' or '.join(found)}?"
    if len(names) <= 12:
        return f" Allowed: {', '.join(names)}."
    return ""


def close_matches(word: str, names: Iterable[str]) -> list[str]:
    """Up to three names that a misspelled or partial word may mean, closest first."""
    distances = {name: distance(word, name) for name in names}
    best = min((each for each in distances.values() if each is not None), default=0)
    close = [
        (edits, abs(len(name) - len(word)), name)
        for name, edits in distances.items()
        if edits is not None and edits <= best + (best > 0)
    ]
    return [name for *_, name in sorted(close)[:3]]


def distance(word: str, name: str) -> int | None:
    """The edit distance from a word to a name; None if it is too far.

    One edit in four letters is close, and so is a prefix or a part between separators:
    `epoch` for `epochs`, `evaluate` for `eval`, `warmup` for `schedule.warmup_epochs`.
    """
    given, meant = (
        re.sub("[-_. ]+", "_", each.lower()).strip("_") for each in (word, name)
    )
    short, long = sorted((given, meant), key=len)
    most = max(1, len(long) // 4)
    is_part = len(short) >= 3 and long.startswith(short)
    is_part = is_part or (len(given) >= 3 and f"_{given}_" in f"_{meant}_")
    if len(long) - len(short) > most:
        return most + 1 if is_part else None
    edits = edit_distance(given, meant)
    if edits > most or edits == len(long):
        return most + 1 if is_part else None
    return edits


def edit_distance(one: str, other: str) -> int:
    """Damerau-Levenshtein distance: insert, delete, change or swap letters."""
    before: list[int] = []
    last = list(range(len(other) + 1))
    for row, letter in enumerate(one, 1):
        now = [row]
        for column, wanted in enumerate(other, 1):
            costs = [
                last[column] + 1,
                now[-1] + 1,
                last[column - 1] + (letter != wanted),
            ]
            swapped = one[row - 2 : row] == other[column - 2 : column][::-1]
            if min(row, column) > 1 and swapped:
                costs.append(before[column - 2] + 1)
            now.append(min(costs))
        before, last = last, now
    return last[-1]


def require(
    name: str,
    value: float,
    least: float,
    most: float = math.inf,
    *,
    below: float = math.inf,
) -> None:
    """Raises an error for a number out of its range, NaN or infinite."""
    if least <= value <= most and value < below:
        return
    if below < math.inf:
        allowed = f"from {least:.10g} to below {below:.10g}"
    elif most < math.inf:
        allowed = f"from {least:.10g} to {most:.10g}"
    else:
        allowed = f"{least:.10g} or more"
    raise UserError(f"{name}={value} must be {allowed}.")


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its type if it has none."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def on_one_line(name: str) -> str:
    """A name with line breaks and control characters escaped."""
    return "".join(
        character.encode("unicode_escape").decode()
        if category(character) in ("Cc", "Cs", "Zl", "Zp")
        else character
        for character in name
    )


def choose(slot: str, name: str, choices: Mapping[str, Choice]) -> Choice:
    """The choice of that name; an error lists the names."""
    if name not in choices:
        allowed = ", ".join(sorted(choices))
        raise UserError(f"{slot}={name!r} is not known; allowed: {allowed}.")
    return choices[name]
