"""Class names: WordNet numbers, their words, and matching of names."""

import csv
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path

MAX_LISTED = 5
"""Class names that a message lists."""


def read_timm_table(name: str) -> list[str]:
    """The lines of a table in timm's package, read without importing timm.

    Importing timm takes seconds, and prediction needs only the class names.
    """
    timm = find_spec("timm")
    assert timm is not None
    assert timm.origin is not None
    file = Path(timm.origin).parent / "data" / "_info" / name
    return file.read_text(encoding="utf-8").splitlines()


@cache
def imagenet_classes() -> tuple[str, ...]:
    """ImageNet's WordNet numbers such as n01440764, in the order of outputs."""
    return tuple(read_timm_table("imagenet_synsets.txt"))


@cache
def wordnet() -> dict[str, str]:
    """The words of ImageNet's WordNet numbers, also beyond the 1,000 classes."""
    lines = read_timm_table("imagenet_synset_to_lemma.txt")
    return dict(csv.reader(lines, delimiter="\t"))


def readable_names(class_names: Sequence[str]) -> tuple[str, ...]:
    """Class names with words in place of WordNet numbers."""
    return tuple(wordnet_words(name) or name for name in class_names)


def wordnet_words(name: str) -> str:
    """The words of a WordNet number; empty for any other name."""
    if len(name) != 9 or name[0] != "n" or not name[1:].isdecimal():
        return ""
    return wordnet().get(name, "")


def aliases(name: str) -> set[str]:
    """All names of a class: its own and, for a WordNet number, its words."""
    words = wordnet_words(name)
    if not words:
        return {name}
    return {name, words, words.partition(",")[0]}


def class_indices(given: Sequence[str], classes: Sequence[str]) -> list[int | None]:
    """The index of each given name among `classes`; None if it is not there."""
    meant: dict[str, list[int]] = {}
    for number, name in enumerate(classes):
        for alias in aliases(name):
            meant.setdefault(alias, []).append(number)
    # Lists of WordNet's words differ in their later synonyms.
    shortened = all(wordnet_words(name) for name in classes)
    return [
        choose_index([name, *name.split(",")[: int(shortened)]], at, meant)
        for at, name in enumerate(given)
    ]


def choose_index(
    names: Sequence[str], at: int, meant: dict[str, list[int]]
) -> int | None:
    """The class with one of these names; if two have it (crane), the one at `at`."""
    for word in names:
        numbers = meant.get(word, [])
        if at in numbers:
            return at
        if len(numbers) == 1:
            return numbers[0]
    return None


def listed(names: Sequence[str]) -> str:
    """The first few names."""
    more = len(names) - MAX_LISTED
    shown = ", ".join(repr(name) for name in names[:MAX_LISTED])
    return f"{shown} and {more} more" if more > 0 else shown
