"""What a model's classes are called, by itself and by people."""

import csv
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path


def table_of_timm(name: str) -> list[str]:
    """The lines of a table that timm ships, read without importing timm.

    Naming classes is all that prediction asks of it, and importing takes seconds.
    """
    timm = find_spec("timm")
    assert timm is not None
    assert timm.origin is not None
    file = Path(timm.origin).parent / "data" / "_info" / name
    return file.read_text(encoding="utf-8").splitlines()


@cache
def imagenet_classes() -> tuple[str, ...]:
    """WordNet numbers such as n01440764, in the order that models are trained in."""
    return tuple(table_of_timm("imagenet_synsets.txt"))


@cache
def wordnet() -> dict[str, str]:
    """The words of every WordNet number that ImageNet has, beyond its 1,000 classes."""
    lines = table_of_timm("imagenet_synset_to_lemma.txt")
    return dict(csv.reader(lines, delimiter="\t"))


def in_words(class_names: Sequence[str]) -> tuple[str, ...]:
    """Classes as people call them: words in place of WordNet's numbers."""
    return tuple(words_of(name) or name for name in class_names)


def words_of(name: str) -> str:
    """The words of a WordNet number; empty for any other name."""
    if len(name) != 9 or name[0] != "n" or not name[1:].isdecimal():
        return ""
    return wordnet().get(name, "")


def aliases(name: str) -> set[str]:
    """All names that mean this class: its own and, for WordNet's, its words."""
    words = words_of(name)
    if not words:
        return {name}
    return {name, words, words.partition(",")[0]}
