"""Chooses between models of the same shapes by the name of the file."""

import re
from collections.abc import Sequence

NEUTRAL = re.compile(
    "arch|averaged|base|best|bin|checkpoints?|ckpt|dict|ema|epochs?|file|final|github|"
    "imagenet|last|latest|model|net|orig(?:in)?|pretrained|pth?|px|raw|release|"
    "safetensors|state|tar|top|torch|trained|weights?|[a-z]"
)
"""Words in file names that do not identify a model."""


def choose_by_name(names: Sequence[str], hint: str) -> tuple[str, bool]:
    """The model that a hint names, else the first; and whether that is certain.

    Punctuation, spaces and case are ignored, and a word that only one model has
    (`resnext`) is enough. It is not certain if the hint names two models, or has
    unknown words beside the name.
    """
    meant = [name for name in names if is_spelled(name, hint)]
    meant += [name for name in names if has_own_words(name, names, hint)]
    if not meant:
        return names[0], False
    name = max(meant, key=lambda each: (len(own_words(each, names)), len(each)))
    rest = re.sub(spelling(name), " ", hint.lower())
    others = [each for each in names if each != name and is_spelled(each, rest)]
    if others and is_spelled(name, hint):
        return name, False
    if own_words(name, names):
        return name, True
    return name, all(map(is_neutral, re.findall(r"[a-z0-9]+", rest)))


def spelling(name: str) -> str:
    """A regular expression for a name with any punctuation between its letters."""
    letters = re.sub(r"[\W_]", "", name.lower())
    return r"[\W_]*".join(letters) + r"(?!\d)"


def is_spelled(name: str, hint: str) -> bool:
    """Whether a hint contains a model's whole name."""
    return re.search(spelling(name), hint.lower()) is not None


def has_own_words(name: str, names: Sequence[str], hint: str) -> bool:
    """Whether a hint contains the words that distinguish this model from the others."""
    words = own_words(name, names)
    letters = re.sub(r"[\W_]", "", hint.lower())
    return any(word.isalpha() for word in words) and all(
        word in (letters if word.isalpha() else re.findall(r"\d+", hint))
        for word in words
    )


def own_words(name: str, names: Sequence[str]) -> set[str]:
    """The words and numbers of a name that are not in all of the names."""
    words = {each: {*re.findall(r"[a-z]+|\d+", each)} for each in names}
    return words[name] - set.intersection(*words.values())


def is_neutral(word: str) -> bool:
    """Whether a word of a hint does not identify a model."""
    letters = re.findall(r"[a-z]+", word)
    is_hash = re.fullmatch(r"(?=.*\d)[0-9a-f]{6,}", word) is not None
    return is_hash or all(map(NEUTRAL.fullmatch, letters))
