"""Numbered labels and the names of the classes, checked."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from t2t.data.sources.base import Indices, Source
from t2t.errors import UserError


def labels_and_classes(
    values: Sequence[Any], classes: tuple[str, ...] | None, where: str
) -> tuple[Indices, tuple[str, ...]]:
    """Numbered labels and the classes' names, from numbers or from names."""
    if any(value is None for value in values):
        row = next(row for row, value in enumerate(values) if value is None)
        raise UserError(f"Image {row} of {where} has no label: give every image one.")
    if any(isinstance(value, str) for value in values):
        values = [str(value) for value in values]
        names = classes or tuple(sorted(set(values)))
        numbers = {name: number for number, name in enumerate(names)}
        if unknown := sorted(set(values) - set(names)):
            raise UserError(f"{where} has the label {unknown[0]!r}, which is no class.")
        return np.array([numbers[value] for value in values], np.int64), names
    labels = np.array(values, np.int64)
    top = int(labels.max(initial=-1))
    names = classes or tuple(str(number) for number in range(top + 1))
    if len(labels) and (int(labels.min()) < 0 or top >= len(names)):
        wrong = int(labels.min()) if int(labels.min()) < 0 else top
        raise UserError(
            f"{where} has the label {wrong}, but its {len(names)} classes are numbered "
            f"from 0 to {len(names) - 1}: are these images meant for testing only?"
        )
    return labels, names


def check_no_empty_class(source: Source, where: str) -> None:
    """Refuse a training set with a class that it has no image of."""
    counts = np.bincount(source.labels, minlength=len(source.classes))
    empty = [source.classes[number] for number in np.flatnonzero(counts == 0)]
    if empty:
        raise UserError(
            f"{where} has no training image of {_listed(empty)}: add images or remove "
            f"the class{'es' if len(empty) > 1 else ''}."
        )


def check_same_classes(train: Source, val: Source, where: str) -> None:
    """Refuse a validation set of other classes than the training set's."""
    if train.classes == val.classes:
        return
    only_train = sorted(set(train.classes) - set(val.classes))
    only_val = sorted(set(val.classes) - set(train.classes))
    if not only_train and not only_val:
        raise UserError(
            f"{where} numbers the same classes differently for training and validation."
        )
    parts = []
    if only_train:
        parts.append(f"{_listed(only_train)} only for training")
    if only_val:
        parts.append(f"{_listed(only_val)} only for validation")
    raise UserError(
        f"{where} has {' and '.join(parts)}: both need the same classes, so add or "
        "remove what differs."
    )


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:5])
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f"the class{'es' if len(names) > 1 else ''} {shown}{more}"
