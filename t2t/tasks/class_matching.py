"""Matches the classes of data to those of a model, by their names."""

from collections.abc import Sequence
from copy import copy

import numpy as np

from t2t.data.sources import Source
from t2t.data.sources.base import Indices
from t2t.errors import UserError
from t2t.models.class_names import class_indices, listed


def relabelled(source: Source, numbers: Indices, classes: Sequence[str]) -> Source:
    """The same images with the class numbers of a model."""
    copied = copy(source)
    copied.classes = tuple(classes)
    if source.label_sets is None:
        copied.labels = numbers[source.labels]
    else:
        sets = source.label_sets
        copied.label_sets = np.where(sets < 0, -1, numbers[sets]).astype(np.int32)
    return copied


def match_classes(
    names: Sequence[str], classes: Sequence[str], where: str
) -> tuple[Indices, tuple[str, ...]]:
    """The model's number of each class of the data, and notes for the user.

    Names may be in any order, and some of the model's may be missing. Classes without
    names are matched by number.
    """
    numbers = class_indices(names, classes)
    unknown = [
        name for name, number in zip(names, numbers, strict=True) if number is None
    ]
    if unknown and (note := note_on_order(names, classes, where)):
        return np.arange(len(names)), (note,)
    if unknown:
        raise UserError(
            f"{where} has classes that the model does not know: {listed(unknown)}; the "
            f"model's {len(classes)} are {listed(classes)}. Rename or remove those "
            "classes."
        )
    found = np.array(numbers, np.int64)
    if len(set(found.tolist())) < len(found):
        raise UserError(
            f"Several classes of {where} are one class of the model: {listed(names)}."
        )
    if len(names) == len(classes):
        return found, ()
    note = f"{where} has {len(names)} of the model's {len(classes)} classes."
    return found, (note,)


def note_on_order(names: Sequence[str], classes: Sequence[str], where: str) -> str:
    """A note if classes can be matched by order or number; empty if they cannot."""
    if len(names) <= len(classes) and list(names) == list(map(str, range(len(names)))):
        return f"The classes of {where} are matched by number."
    numbered = [f"class {number}" for number in range(len(names))]
    if list(classes) == numbered:
        return (
            f"The model's classes have no names; those of {where} are matched in order."
        )
    return ""
