"""The sources of a table: its images with the classes of their rows."""

import os
from copy import copy
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from t2t.data.sources.base import FileSource, Openers, Source, no_labels
from t2t.data.sources.label_sets import LabelSets, numbered_sets
from t2t.data.sources.label_table import (
    SPLITS,
    FoundFiles,
    LabelTable,
    find_files,
)
from t2t.data.sources.label_values import Classes, ReadValues, read_flags, read_values
from t2t.data.sources.packed_names import Indices
from t2t.errors import UserError, on_one_line
from t2t.formatting import counted

_SEVERAL_SHARE = 0.1
"""From this share of images with different labels, they are multi-label."""
_NUM_SHOWN = 3
_MISSING_WORDS = frozenset(("na", "n/a", "nan", "none", "null", "<na>"))
"""What other programs write for a missing value, and what a class may be called."""


@dataclass(frozen=True)
class TableImages:
    """The images of a table, and the split of each."""

    source: FileSource
    split_of: Indices
    """The number of each image's split in SPLITS."""
    separator: str
    is_several: bool

    def openers(self) -> Openers:
        """An opener for each split."""
        present = np.unique(self.split_of)
        return {SPLITS[number]: partial(self.open, int(number)) for number in present}

    def open(self, split: int) -> Source:
        """The images of one split."""
        rows = np.flatnonzero(self.split_of == split)
        part = copy(self.source)
        if len(rows) < len(self.source):
            # No Subset: its other images must not come back as folds of this split.
            part.names, part.labels = part.names.take(rows), part.labels[rows]
        return part


def images_of_table(
    table: LabelTable,
    root: str,
    *,
    separator: str | None = None,
    several: bool | None,
    labels: bool,
    exist: bool = False,
) -> TableImages:
    """The images of a table whose files exist.

    Paths are relative to `root`; with `exist`, all are known to exist. Without
    `labels`, rows need none, and the source has classes only if all have one.
    """
    if exist:
        found = FoundFiles(table.names, np.arange(len(table)))
    else:
        found = find_files(table, root)
    read = _read(table, separator)
    rows = _Rows(table, found, read, several, root)
    rows.merge_repeats()
    if labels:
        rows.drop_unlabelled()
    rows.check_splits()
    numbers, classes, label_sets = rows.number_labels()
    names = found.names
    if len(rows.kept) < len(table):
        names = names.take(rows.kept)
    notes = (*found.notes, *rows.notes)
    source = FileSource(Path(root), names, numbers, classes, notes)
    source.label_sets = label_sets
    return TableImages(
        source,
        table.splits[rows.kept].astype(np.int64),
        read.separator,
        label_sets is not None,
    )


def _read(table: LabelTable, separator: str | None) -> ReadValues:
    if table.flag_columns:
        return read_flags(table.values, table.flag_columns, table.where)
    return read_values(table.values, table.label_column, separator)


class _Rows:
    """The rows that are kept, and their labels, step by step."""

    def __init__(
        self,
        table: LabelTable,
        found: FoundFiles,
        read: ReadValues,
        several: bool | None,
        root: str,
    ) -> None:
        self.root = root
        self.table, self.names, self.kept = table, found.names, found.rows
        self.classes_of = list(read.classes)
        self.values = table.value_of[self.kept]
        self.several = several
        self.notes: list[str] = []

    @property
    def is_several(self) -> bool:
        """Whether an image has several classes, or may have."""
        if self.several is not None:
            return self.several
        used = (self.classes_of[value] for value in np.unique(self.values))
        is_flags = bool(self.table.flag_columns)
        return any(len(each) > 1 or (is_flags and not each) for each in used)

    def merge_repeats(self) -> None:
        """Makes one image of several rows with the same path."""
        table = self.table
        # cats/../dogs is dogs, and 1 is 1.jpg.
        paths = [os.path.normpath(os.path.join(self.root, f)) for f in table.folders]
        numbers = {path: number for number, path in enumerate(paths)}
        folders = np.array([numbers[path] for path in paths], np.uint64)
        mixed = folders[table.folder_of[self.kept]] * np.uint64(0x9E3779B97F4A7C15)
        hashes = table.hashes
        if self.names is not table.names:  # some have their suffix now
            bases = (name.rpartition("/")[2] for name in self.names)
            hashes = np.fromiter(map(hash, bases), np.int64, len(table))
        keys = hashes[self.kept].astype(np.uint64) ^ mixed
        _, first, group_of = np.unique(keys, return_index=True, return_inverse=True)
        if len(first) == len(keys):
            return
        groups: dict[int, list[int]] = {}
        for row in np.flatnonzero(np.bincount(group_of)[group_of] > 1).tolist():
            groups.setdefault(int(group_of[row]), []).append(row)
        self._check_one_split(groups)
        different = [
            rows
            for rows in groups.values()
            if len({self.classes_of[self.values[row]] for row in rows}) > 1
        ]
        if different and not self.is_several:
            self._take_as_several(different, len(first))
        for rows in different:
            merged = [
                name for row in rows for name in self.classes_of[self.values[row]]
            ]
            self.classes_of.append(tuple(dict.fromkeys(merged)))
            self.values[rows[0]] = len(self.classes_of) - 1
        if len(different) < len(groups):
            num = sum(map(len, groups.values())) - len(groups)
            which = "1 row repeats" if num == 1 else f"{num:,} rows repeat"
            first_repeated = self._name(next(iter(groups.values()))[0])
            self.notes.append(
                f"{which} a path of {table.where}, such as {first_repeated}; each "
                "image is used once."
            )
        rows_kept = np.sort(first)
        self.kept, self.values = self.kept[rows_kept], self.values[rows_kept]

    def _take_as_several(self, different: list[list[int]], num_images: int) -> None:
        """Takes different labels of one path as several, or as a mistake if few do."""
        if self.several is None and len(different) >= _SEVERAL_SHARE * num_images:
            self.several = True
            return
        labels = [
            "/".join(self.classes_of[self.values[row]]) or "none"
            for row in different[0]
        ]
        which = counted(len(different), "image")
        raise UserError(
            f"{self.table.where} gives {which} different labels in several rows, such "
            f"as {self._name(different[0][0])} ({', '.join(labels[:_NUM_SHOWN])}): "
            "remove the wrong rows, or, if images may have several labels, add "
            "--set task=multilabel."
        )

    def _check_one_split(self, groups: dict[int, list[int]]) -> None:
        for rows in groups.values():
            found = {SPLITS[self.table.splits[self.kept[row]]] for row in rows}
            if len(found) > 1:
                raise UserError(
                    f"{self._name(rows[0])} is in {' and in '.join(sorted(found))} of "
                    f"{self.table.where}: give every image one split."
                )

    def drop_unlabelled(self) -> None:
        """Skips rows without a label, where each image should have one."""
        is_several = self.is_several
        given = [*self.table.values, *([None] * len(self.classes_of))]
        is_empty = np.array(
            [
                value == "" if is_several else not classes
                for value, classes in zip(given, self.classes_of, strict=False)
            ]
        )[self.values]
        if not is_empty.any():
            return
        num, total = int(is_empty.sum()), len(is_empty)
        first = self._name(int(np.argmax(is_empty)))
        if num > total / 2:
            raise UserError(
                f"{num:,} of {total:,} images of {self.table.where} have no label, "
                f"such as {first}: is {self.table.label_column!r} the column of "
                "labels? Name another with --label-columns label=COLUMN."
            )
        verb = "has" if num == 1 else "have"
        self.notes.append(
            f"{counted(num, 'image')} of {self.table.where} {verb} no label and "
            f"{'is' if num == 1 else 'are'} skipped, such as {first}."
        )
        self.kept, self.values = self.kept[~is_empty], self.values[~is_empty]

    def check_splits(self) -> None:
        """Refuses tables in which some rows have a split and others none."""
        splits = self.table.splits[self.kept]
        num = int((splits == 0).sum())
        if 0 < num < len(splits):
            first = self._name(int(np.argmax(splits == 0)))
            raise UserError(
                f"{num:,} of {len(splits):,} images of {self.table.where} have no "
                f"split, such as {first}: write train, val or test in every row."
            )

    def number_labels(self) -> tuple[Indices, Classes, LabelSets | None]:
        """The label of each image, the names of the classes, and the sets of labels."""
        used = np.unique(self.values)
        classes_of = [self.classes_of[value] for value in used]
        is_several = self.is_several
        if not is_several and not all(classes_of):
            return no_labels(len(self.kept)), (), None
        classes = sorted_classes({name for each in classes_of for name in each})
        self._check_are_classes(len(classes), is_several)
        self._note_on_classes(classes)
        number = {name: n for n, name in enumerate(classes)}
        sets = [[number[name] for name in each] for each in classes_of]
        of_value = np.zeros(len(self.classes_of), np.int64)
        label_sets = None
        most = max(classes_of, key=len)
        if not is_several and len(most) > 1:
            raise UserError(
                f"{self.table.where} has several labels for an image "
                f"({', '.join(most[:_NUM_SHOWN])}): leave out labels.several=false."
            )
        if is_several:
            of_value[used], label_sets = numbered_sets(sets)
        else:
            of_value[used] = [each[0] for each in sets]
        return of_value[self.values], classes, label_sets

    def _note_on_classes(self, classes: Classes) -> None:
        """Notes columns without images, and classes that may be missing labels."""
        where = self.table.where
        empty = [name for name in self.table.flag_columns if name not in classes]
        if empty:
            shown = ", ".join(map(repr, empty[:_NUM_SHOWN]))
            shown += ", …" if len(empty) > _NUM_SHOWN else ""
            which = f"{len(empty):,} columns, which are not classes:"
            if len(empty) == 1:
                which = "a column, which is not a class:"
            self.notes.append(f"{where} has no 1 in {which} {shown}.")
        for name in classes:
            if name.lower() in _MISSING_WORDS:
                holds = [name in each for each in self.classes_of]
                num = int(np.array(holds)[self.values].sum())
                self.notes.append(
                    f"{name!r} is a class, of {counted(num, 'image')} of "
                    f"{where}: if it says that the label is missing, leave the cell "
                    "empty."
                )

    def _check_are_classes(self, num_classes: int, is_several: bool) -> None:
        """Refuses a column with another value for nearly every image."""
        num = len(self.kept)
        if is_several or num < 20 or num_classes <= num / 2:
            return
        column = self.table.label_column
        raise UserError(
            f"{self.table.where} has {num_classes:,} different labels for {num:,} "
            f"images{f' in its column {column!r}' if column else ''}, so these are not "
            "classes: name the column of classes with --label-columns label=COLUMN."
        )

    def _name(self, row: int) -> str:
        return on_one_line(self.names[int(self.kept[row])])


def sorted_classes(names: set[str]) -> Classes:
    """The names in alphabetical order; numbers in theirs."""
    if all(name.isdecimal() for name in names):
        return tuple(sorted(names, key=lambda name: (int(name), name)))
    return tuple(sorted(names))
