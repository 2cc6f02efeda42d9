"""Images of other data under the classes of a model, matched by their names."""

from collections.abc import Sequence
from copy import copy

import numpy as np

from t2t.data.sources import Source
from t2t.data.sources.base import Indices
from t2t.errors import UserError
from t2t.models.class_names import aliases, words_of

_NUM_NAMED = 5


def relabelled(source: Source, numbers: Indices, classes: Sequence[str]) -> Source:
    """The same images, their labels numbered as a model numbers its classes."""
    same = copy(source)
    same.labels, same.classes = numbers[source.labels], tuple(classes)
    return same


def match_classes(
    given: Sequence[str], classes: Sequence[str], where: str
) -> tuple[Indices, tuple[str, ...]]:
    """The model's number of each of the data's classes, and what should be known.

    Names may stand in any order and need not be all of the model's. Data whose classes
    are only numbered goes by these numbers.
    """
    meant: dict[str, list[int]] = {}
    for number, name in enumerate(classes):
        for alias in aliases(name):
            meant.setdefault(alias, []).append(number)
    # Lists of WordNet's words differ in their later synonyms.
    shortened = all(words_of(name) for name in classes)
    numbers = [
        choose_number([name, *name.split(",")[: int(shortened)]], at, meant)
        for at, name in enumerate(given)
    ]
    unknown = [
        name for name, number in zip(given, numbers, strict=True) if number is None
    ]
    if unknown and (note := why_in_order(given, classes, where)):
        return np.arange(len(given)), (note,)
    if unknown:
        raise UserError(
            f"{where} has classes that the model does not know: {listed(unknown)}; the "
            f"model's {len(classes)} are {listed(classes)}. Rename or remove what "
            "differs."
        )
    found = np.array(numbers, np.int64)
    if len(set(found.tolist())) < len(found):
        raise UserError(
            f"Several classes of {where} are one class of the model: {listed(given)}."
        )
    if len(given) == len(classes):
        return found, ()
    note = f"{where} has {len(given)} of the model's {len(classes)} classes."
    return found, (note,)


def why_in_order(given: Sequence[str], classes: Sequence[str], where: str) -> str:
    """A sentence on why classes without names in common go in their order, if so."""
    if len(given) <= len(classes) and list(given) == list(map(str, range(len(given)))):
        return f"The classes of {where} are matched by number."
    numbered = [f"class {number}" for number in range(len(given))]
    if list(classes) == numbered:
        return f"The model's classes have no names; those of {where} go in order."
    return ""


def choose_number(
    names: Sequence[str], at: int, meant: dict[str, list[int]]
) -> int | None:
    """The one class of these names; of two (two are called crane), the one in place."""
    for word in names:
        numbers = meant.get(word, [])
        if at in numbers:
            return at
        if len(numbers) == 1:
            return numbers[0]
    return None


def listed(names: Sequence[str]) -> str:
    """The first few names."""
    more = len(names) - _NUM_NAMED
    shown = ", ".join(repr(name) for name in names[:_NUM_NAMED])
    return f"{shown} and {more} more" if more > 0 else shown
