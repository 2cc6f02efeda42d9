"""Images of other data under the classes of a model, matched by their names."""

from collections.abc import Sequence
from copy import copy

import numpy as np

from t2t.data.sources import Source
from t2t.data.sources.base import Indices
from t2t.errors import UserError
from t2t.models.class_names import class_indices, listed


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
    numbers = class_indices(given, classes)
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
