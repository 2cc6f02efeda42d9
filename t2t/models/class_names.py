"""What a model's classes are called, by itself and by people."""

from collections.abc import Sequence
from functools import cache

from timm.data import ImageNetInfo


@cache
def imagenet() -> ImageNetInfo:
    """The thousand classes of ImageNet-1k: WordNet numbers and their words."""
    return ImageNetInfo()


def imagenet_classes() -> tuple[str, ...]:
    """WordNet numbers such as n01440764, in the order that models are trained in."""
    return tuple(imagenet().label_names())


def in_words(class_names: Sequence[str]) -> tuple[str, ...]:
    """Classes as people call them: words in place of WordNet's numbers."""
    return tuple(words_of(name) or name for name in class_names)


def words_of(name: str) -> str:
    """The words of a WordNet number; empty for any other name."""
    if len(name) != 9 or name[0] != "n" or not name[1:].isdecimal():
        return ""
    try:
        words: str = imagenet().label_name_to_description(name)
    except KeyError:
        return ""
    return words


def aliases(name: str) -> set[str]:
    """All names that mean this class: its own and, for WordNet's, its words."""
    words = words_of(name)
    if not words:
        return {name}
    return {name, words, words.partition(",")[0]}
