"""Several labels per image: a table of the distinct sets of classes.

A source keeps one integer per image, whatever its labels: without sets it is the number
of a class, with sets the number of a row in this table. So samplers, workers, caches
and packs move the same integers for both.
"""

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

LabelSets: TypeAlias = npt.NDArray[np.int32]
"""The classes of each distinct set, sorted, padded with −1: sets × most classes."""


def as_label_sets(sets: Iterable[Sequence[int]]) -> LabelSets:
    """The table of some sets of class numbers."""
    rows = [sorted({*each}) for each in sets]
    table = np.full((len(rows), max(map(len, rows), default=0) or 1), -1, np.int32)
    for row, classes in zip(table, rows, strict=True):
        row[: len(classes)] = classes
    return table


def numbered_sets(
    sets: Iterable[Sequence[int]],
) -> tuple[npt.NDArray[np.int64], LabelSets]:
    """For each of some sets its row in a table of the distinct ones, and the table."""
    rows: dict[tuple[int, ...], int] = {}
    numbers = [rows.setdefault(tuple(sorted({*each})), len(rows)) for each in sets]
    return np.array(numbers, np.int64), as_label_sets(rows)


def sets_of_classes(num_classes: int) -> LabelSets:
    """The table for images with one label each: row n is class n alone."""
    return np.arange(num_classes, dtype=np.int32)[:, None]


def multi_hot(sets: LabelSets, num_classes: int) -> npt.NDArray[np.bool_]:
    """The table as sets × classes, true where a set has the class."""
    table = np.zeros((len(sets), num_classes + 1), np.bool_)
    np.put_along_axis(table, sets.astype(np.int64), True, axis=1)
    return table[:, :num_classes]  # −1 is the last column


def class_counts(
    labels: npt.NDArray[np.int64], sets: LabelSets, num_classes: int
) -> npt.NDArray[np.int64]:
    """How many of the images have each class."""
    num_images = np.bincount(labels, minlength=len(sets))
    used = sets >= 0
    counts = np.bincount(
        sets[used],
        weights=np.repeat(num_images, used.sum(1)),
        minlength=num_classes,
    )
    return counts.astype(np.int64)


def rarest_classes(
    labels: npt.NDArray[np.int64], sets: LabelSets, num_classes: int
) -> npt.NDArray[np.int64]:
    """The rarest class of each image, to stratify by; of none, `num_classes`."""
    counts = np.append(class_counts(labels, sets, num_classes), np.iinfo(np.int64).max)
    rarest = np.take_along_axis(sets, counts[sets].argmin(1)[:, None], 1)[:, 0]
    return np.where(rarest < 0, num_classes, rarest).astype(np.int64)[labels]
