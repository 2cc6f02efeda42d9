"""Mistakes a user can make and put right, told in one sentence."""

import difflib
import math
from collections.abc import Iterable, Mapping
from typing import TypeVar
from unicodedata import category

Choice = TypeVar("Choice")


class UserError(ValueError):
    """Says what was given, what is allowed and what to do; shown in one sentence."""


class LocalError(UserError):
    """One that a process meets alone, and must tell itself, whatever its rank."""


class ToldError(UserError):
    """One that another process tells, so that this one need not."""


def suggest(word: str, allowed: Iterable[str], num: int = 3) -> str:
    """A closing sentence that names the likeliest meant words, or all of a few.

    Starts with a space, so that it can follow the sentence that names the mistake.
    """
    names = sorted({*allowed})
    near = difflib.get_close_matches(word, names, n=num, cutoff=0.5)
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
