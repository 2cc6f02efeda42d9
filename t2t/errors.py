"""Mistakes a user can make and put right, told in one sentence."""

import difflib
import errno
import math
import os
from collections.abc import Iterable, Mapping
from typing import TypeVar
from unicodedata import category

Choice = TypeVar("Choice")

_FILES = "allow more open files (ulimit -n), or try {less}"
_MEMORY = "leave more memory free, or try {less}"
_DISK = "see to the disk or network that it lies on, and repeat the command"
# What a machine lacks, whichever file is read. A bad sector (EIO), a file that one may
# not read and one that is gone are faults of that file.
_LACKS = {
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), _FILES),
    errno.ENOMEM: _MEMORY,
    **dict.fromkeys(
        (errno.ESTALE, errno.ENOTCONN, errno.ETIMEDOUT, errno.EHOSTDOWN), _DISK
    ),
}


class UserError(ValueError):
    """Says what was given, what is allowed and what to do; shown in one sentence."""


class LocalError(UserError):
    """One that a process meets alone, and must tell itself, whatever its rank."""


class ToldError(UserError):
    """One that another process tells, so that this one need not."""


def lack(
    name: str, error: BaseException, less: str = "fewer --workers"
) -> LocalError | None:
    """What to tell where the machine is at fault, and not the file that was read.

    `less` is what the command could do with less of.
    """
    if isinstance(error, LocalError):
        return LocalError(str(error))
    if isinstance(error, ConnectionError):  # which says what was to be reached
        return LocalError(f"{error}: is there a network?")
    number = getattr(error, "errno", None)
    if isinstance(error, MemoryError):
        number = errno.ENOMEM
    if number not in _LACKS:
        return None
    return LocalError(
        f"{on_one_line(name) or 'An image'} was not read ({os.strerror(number)}), "
        f"which is no fault of its own: {_LACKS[number].format(less=less)}."
    )


def suggest(word: str, allowed: Iterable[str]) -> str:
    """A closing sentence that names the likeliest meant words, or all of a few.

    Starts with a space, so that it can follow the sentence that names the mistake.
    """
    names = sorted({*allowed})
    near = difflib.get_close_matches(word, names, cutoff=0.5)
    if near:
        return f" Did you mean {' or '.join(near)}?"
    if len(names) <= 12:
        return f" Allowed: {', '.join(names)}."
    return ""


def require(
    name: str,
    value: float,
    least: float,
    most: float = math.inf,
    *,
    below: float = math.inf,
) -> None:
    """Refuses a number out of its range, or one that is none or infinite."""
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
    """The first line of what an error says, or its kind where it says nothing."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def on_one_line(name: str) -> str:
    """A name with all that would break a line or steer a terminal escaped."""
    return "".join(
        character.encode("unicode_escape").decode()
        if category(character) in ("Cc", "Cs", "Zl", "Zp")
        else character
        for character in name
    )


def choose(slot: str, name: str, choices: Mapping[str, Choice]) -> Choice:
    """The choice of that name, or a sentence that says which names there are."""
    if name not in choices:
        allowed = ", ".join(sorted(choices))
        raise UserError(f"{slot}={name!r} is not known; allowed: {allowed}.")
    return choices[name]
