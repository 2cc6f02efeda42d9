"""Images from rows of a path, a label and a split, whatever lists them."""

import os
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from t2t.data.sources.filenames import SPLIT_NAMES
from t2t.data.sources.label_values import Classes, plain_value
from t2t.data.sources.listings import AS_NAMED, NOT_THERE, Listings
from t2t.data.sources.packed_names import Indices, PackedNames
from t2t.errors import UserError, on_one_line

Row = tuple[Any, Any, Any]
"""A path, a label and a split; the split is empty if there is none."""
SPLITS = ("all", "train", "val", "test")
_SPLIT_NUMBERS = {
    "": 0,
    "all": 0,
    **{
        name: SPLITS.index(split)
        for split, names in SPLIT_NAMES.items()
        for name in names
    },
}


@dataclass
class LabelTable:
    """The rows of one or more tables, as arrays."""

    where: str
    """What the rows come from, for messages."""
    names: PackedNames
    hashes: Indices
    """Hashes of the names without their folders."""
    folders: list[str]
    folder_of: Indices
    """The number of each row's folder."""
    values: list[Any]
    """The distinct labels: texts, tuples of texts, or tuples of cells."""
    value_of: Indices
    """The number of each row's value."""
    splits: npt.NDArray[np.int8]
    """The number of each row's split in SPLITS."""
    label_column: str = ""
    flag_columns: Classes = ()
    """The names of the columns of 0 and 1, if values are rows of these."""

    def __len__(self) -> int:
        return len(self.names)


def read_rows(
    rows: Iterable[Row], where: str, label_column: str = "", flags: Classes = ()
) -> LabelTable:
    """The table of some rows, which are read once and not kept."""
    data, ends, hashes = bytearray(), array("q"), array("q")
    folders: dict[str, int] = {}
    values: dict[Any, int] = {}
    folder_of, value_of, splits = array("q"), array("q"), array("b")
    swaps = os.sep == "/"
    for path, label, split in rows:
        if type(path) is not str:
            path = (
                os.fspath(path)
                if isinstance(path, os.PathLike)
                else str(plain_value(path))
            )
        path = path.strip()
        if swaps and "\\" in path:  # written on Windows
            path = path.replace("\\", "/")
        if path[:2] == "./":
            path = path[2:]
        base = path.rpartition("/")[2]
        if not base:
            raise UserError(
                f"Row {len(ends) + 1} of {where} has {path or 'nothing'!r} where the "
                "path of an image should be: fix or remove the row."
            )
        data += os.fsencode(path)
        ends.append(len(data))
        hashes.append(hash(base))
        folder = path[: len(path) - len(base)]
        folder_of.append(folders.setdefault(folder, len(folders)))
        label = label.strip() if type(label) is str else plain_value(label)
        value_of.append(values.setdefault(label, len(values)))
        number = _SPLIT_NUMBERS.get(split)
        splits.append(_split_number(split, path, where) if number is None else number)
    if not ends:
        raise UserError(
            f"{where} has no rows: it should list a path and a label for every image."
        )
    return LabelTable(
        where=where,
        names=PackedNames(data, np.array(ends, np.int64)),
        hashes=np.array(hashes, np.int64),
        folders=list(folders),
        folder_of=np.array(folder_of, np.int64),
        values=list(values),
        value_of=np.array(value_of, np.int64),
        splits=np.array(splits, np.int8),
        label_column=label_column,
        flag_columns=flags,
    )


def _split_number(split: Any, path: str, where: str) -> int:
    """The number of a split by another of its names."""
    text = str(plain_value(split)).lower()
    if text not in _SPLIT_NUMBERS:
        raise UserError(
            f"{on_one_line(path)} of {where} has the split {text[:40]!r}: write train, "
            "val or test, or name another column with --label-columns split=COLUMN."
        )
    return _SPLIT_NUMBERS[text]


@dataclass(frozen=True)
class FoundFiles:
    """The rows of a table whose files exist."""

    names: PackedNames
    """The names of all rows, with suffixes where the table leaves them out."""
    rows: Indices
    notes: tuple[str, ...] = ()


def find_files(table: LabelTable, root: str) -> FoundFiles:
    """The rows whose files exist in a folder; an error if most are missing."""
    listings = Listings()
    found = _look_up(table, root, listings)
    is_missing = found == NOT_THERE
    num, num_missing = len(table), int(is_missing.sum())
    first = on_one_line(table.names[int(np.argmax(is_missing))])
    where = os.path.join(root, "") or os.path.join(".", "")
    if num_missing > num / 2:
        which = "None" if num_missing == num else f"Only {num - num_missing:,}"
        raise UserError(
            f"{which} of the {num:,} images of {table.where} "
            f"{'is' if num - num_missing < 2 else 'are'} in {where}; {first} is not, "
            "for example: give the folder that paths are relative to with --data."
        )
    notes = []
    if num_missing:
        notes.append(
            f"{num_missing:,} of the {num:,} images of {table.where} "
            f"{'is' if num_missing == 1 else 'are'} missing and skipped, such as "
            f"{first}."
        )
    num_there = sum(
        listings.of(os.path.join(root, folder)).num_images for folder in table.folders
    )
    if (num_unused := num_there - (num - num_missing)) > 0:
        which = "1 image is" if num_unused == 1 else f"{num_unused:,} images are"
        notes.append(f"{which} not in {table.where}, and not used.")
    names = table.names
    if (found > AS_NAMED).any():
        names = _with_suffixes(table, found, root, listings)
    return FoundFiles(names, np.flatnonzero(~is_missing), tuple(notes))


def find_root(paths: Sequence[str], roots: Sequence[str], where: str) -> str:
    """The folder in which most of a few paths exist; of several, the first."""
    table = read_rows(((path, "", "") for path in paths), where)
    listings = Listings()
    counts = [int((_look_up(table, r, listings) != NOT_THERE).sum()) for r in roots]
    return roots[int(np.argmax(counts))]


def _look_up(table: LabelTable, root: str, listings: Listings) -> Indices:
    """The result of `Listing.find` for all rows, folder by folder."""
    found = np.full(len(table), NOT_THERE, np.int64)
    order = np.argsort(table.folder_of, kind="stable")
    starts = np.flatnonzero(np.diff(table.folder_of[order], prepend=-1))
    for part in np.split(order, starts[1:]):
        folder = table.folders[int(table.folder_of[part[0]])]
        listing = listings.of(os.path.join(root, folder))
        found[part] = listing.find(table.hashes[part])
    return found


def _with_suffixes(
    table: LabelTable, found: Indices, root: str, listings: Listings
) -> PackedNames:
    """The names, with the suffixes that the files have."""
    suffixes = [
        listings.of(os.path.join(root, folder)).suffixes for folder in table.folders
    ]
    return PackedNames.of(
        name + suffixes[folder][kind] if kind > AS_NAMED else name
        for name, folder, kind in zip(
            table.names, table.folder_of.tolist(), found.tolist(), strict=True
        )
    )
