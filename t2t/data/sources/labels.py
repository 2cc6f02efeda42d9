"""Labels, class names, and checks of both."""

import os
from collections.abc import Sequence
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from t2t.data.sources.base import FileSource, Indices, Source, Subset, no_labels
from t2t.data.sources.label_sets import LabelSets, class_counts, numbered_sets
from t2t.errors import UserError

# A larger number is not a class but something else, such as a date.
_MAX_CLASSES = 1 << 20


def read_list(path: Path) -> str:
    """The text of a file that lists images or classes."""
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path} is not text, and should list images: unpack it again."
        ) from error


def read_lines(path: Path) -> list[str]:
    """The lines of a list of images, without comments and empty lines."""
    if not path.is_file():
        raise UserError(f"{path}, the list of images, is missing: unpack it again.")
    lines = (line.strip() for line in read_list(path).splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def labels_if_any(
    values: Sequence[Any], classes: tuple[str, ...] | None, where: str
) -> tuple[Indices, tuple[str, ...]]:
    """As `labels_and_classes`, but unlabelled where labels are missing or invalid."""
    try:
        return labels_and_classes(values, classes, where)
    except UserError:
        return no_labels(len(values)), ()


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
            raise UserError(
                f"{where} has the label {unknown[0]!r}, which is not a class."
            )
        return np.array([numbers[value] for value in values], np.int64), names
    for row, value in enumerate(values):
        if not _is_class_number(value):
            raise UserError(
                f"Image {row} of {where} has the label {value!r:.40}: give every image "
                f"a class's name, or its number from 0 to {_MAX_CLASSES - 1:,}."
            )
    labels = np.array(values, np.int64)
    top = int(labels.max(initial=-1))
    names = classes or tuple(str(number) for number in range(top + 1))
    if len(labels) and (int(labels.min()) < 0 or top >= len(names)):
        wrong = int(labels.min()) if int(labels.min()) < 0 else top
        if not names:
            raise UserError(
                f"{where} has only negative labels, such as {wrong}: number the "
                "classes from 0."
            )
        raise UserError(
            f"{where} has the label {wrong}, but its {len(names)} classes are numbered "
            f"from 0 to {len(names) - 1}: are these images meant for testing only?"
        )
    return labels, names


def sets_and_classes(
    values: Sequence[Any], classes: tuple[str, ...] | None, where: str
) -> tuple[Indices, LabelSets, tuple[str, ...]]:
    """Numbered label sets, their table, and the classes' names, from lists of labels.

    A single label is a list of one, and None an empty list.
    """
    lists = [each if isinstance(each, list) else [each] for each in values]
    sets = [[label for label in each if label is not None] for each in lists]
    flat = [label for each in sets for label in each]
    numbers, names = labels_and_classes(flat, classes, where)
    ends = np.cumsum([0, *map(len, sets)])
    rows = [numbers[start:end].tolist() for start, end in pairwise(ends)]
    return *numbered_sets(rows), names


def share_label_sets(train: Source, val: Source) -> None:
    """Makes both sources number the label sets of one table."""
    first, second = train.label_sets, val.label_sets
    if first is None or second is None or first is second:
        return
    rows = [*first.tolist(), *second.tolist()]
    numbers, table = numbered_sets([n for n in row if n >= 0] for row in rows)
    train.labels, val.labels = numbers[train.labels], numbers[len(first) + val.labels]
    train.label_sets = val.label_sets = table


def _is_class_number(value: Any) -> bool:
    """Whether this is a whole number, of any numeric type."""
    is_number = isinstance(value, int | float | Decimal)
    # Negative numbers, which mean no label, have an error of their own.
    return is_number and value < _MAX_CLASSES and value == value // 1


def check_no_empty_class(source: Source, where: str) -> None:
    """Refuses a training set that lacks images of a class."""
    counts = counts_of(source)
    empty = [source.classes[number] for number in np.flatnonzero(counts == 0)]
    if empty:
        raise UserError(
            f"{where} has no training image of {_listed(empty)}: add images or remove "
            f"the class{'es' if len(empty) > 1 else ''}."
        )


def counts_of(source: Source) -> Indices:
    """How many images have each class."""
    num_classes = len(source.classes)
    if source.label_sets is None:
        return np.bincount(source.labels, minlength=num_classes)
    return class_counts(source.labels, source.label_sets, num_classes)


def folder_meant(source: Source) -> str:
    """A hint for data with one class that holds folders: they may be the classes.

    Starts with a space; empty if there is nothing to say.
    """
    if isinstance(source, Subset):
        return folder_meant(source.source)
    if len(source.classes) != 1 or not isinstance(source, FileSource):
        return ""
    folder = os.path.join(source.root, source.classes[0])
    names = (os.path.relpath(source.name(n), folder) for n in range(len(source)))
    inner = {name.split(os.sep)[0] if os.sep in name else "" for name in names}
    return f" Did you mean {folder}?" if len(inner) > 1 and "" not in inner else ""


def check_labelled(source: Source, where: str) -> None:
    """Refuses images without labels."""
    if not source.is_labelled:
        raise UserError(
            f"{where} has no labels: add them, or train with a task that needs none."
        )


def drop_unequal_labels(train: Source, val: Source) -> None:
    """Makes both sources unlabelled if their classes differ."""
    try:
        check_same_classes(train, val, "")
    except UserError:
        train.drop_labels()
        val.drop_labels()


def check_same_classes(train: Source, val: Source, where: str) -> None:
    """Refuses a validation set with other classes than the training set."""
    if train.is_multilabel != val.is_multilabel:
        which = "training" if train.is_multilabel else "validation"
        raise UserError(
            f"{where} has several labels per image only for {which}: both need them."
        )
    if train.classes == val.classes:
        return
    num_classes = len(val.classes)
    is_numbered = train.classes == tuple(map(str, range(len(train.classes))))
    if is_numbered and val.classes == train.classes[:num_classes]:
        # Without names, the classes are those up to the highest label.
        val.classes = train.classes
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
