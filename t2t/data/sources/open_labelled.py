"""Opens a folder's images with the labels that tables or a pattern name."""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from t2t.data.image_files import is_dir
from t2t.data.label_config import LabelConfig
from t2t.data.sources.base import Openers
from t2t.data.sources.filenames import split_of
from t2t.data.sources.label_columns import Columns
from t2t.data.sources.label_files import TABLE_SUFFIXES, ReadFile, read_file, rows_of
from t2t.data.sources.label_table import LabelTable, find_root, read_rows
from t2t.data.sources.labels_in_paths import rows_by_pattern
from t2t.data.sources.table_images import TableImages, images_of_table
from t2t.errors import UserError, close_matches, on_one_line

_MAX_FOLDERS = 64
"""Folders beside a table in which its paths are looked for."""
NUM_TRIED = 100
"""Rows whose paths are looked for."""


@dataclass(frozen=True)
class FoundLabels:
    """Openers for the images, and where their labels were found."""

    openers: Openers
    config: LabelConfig
    notes: tuple[str, ...] = ()


def open_labelled(root: Path, config: LabelConfig, labels: bool = True) -> FoundLabels:
    """The images of a folder with the labels that a config names."""
    if config.pattern is not None:
        return open_by_pattern(root, config, labels)
    files = tuple(_find_file(root, file) for file in config.files)
    return open_tables(root, replace(config, files=files), labels)


def open_by_pattern(root: Path, config: LabelConfig, labels: bool) -> FoundLabels:
    """The images of a folder with labels in their paths."""
    assert config.pattern is not None
    notes: list[str] = []
    title = f"{root} by the pattern {config.pattern}"
    rows = rows_by_pattern(root, config.pattern, notes)
    first = next(rows, None)
    if first is None:
        raise UserError(f"{root} holds no images that {config.pattern} fits.")
    table = read_rows(chain([first], rows), title)
    images = images_of_table(
        table,
        str(root),
        separator="",
        several=config.several,
        labels=labels,
        exist=True,
    )
    images.source.notes = (*images.source.notes, *notes)
    return FoundLabels(images.openers(), config)


def open_tables(
    root: Path, config: LabelConfig, labels: bool = True, note: bool = False
) -> FoundLabels:
    """The images that the tables of a config list, with their labels.

    Of several tables, each is for the split that it or its folder is named for. The
    `note` says which tables were found.
    """
    files, are_several = config.files, len(config.files) > 1
    splits = [_split_of(file, root) if are_several else "" for file in files]
    reads = [read_file(file, config, labels) for file in files]
    bases = []
    for number, (read, split) in enumerate(zip(reads, splits, strict=True)):
        rows, base = with_base(read, root, files[number], split)
        reads[number] = replace(read, rows=rows)
        bases.append(base)
    common = bases[0] if len({*bases}) == 1 else str(root)
    parts = [
        rows_of(read, "" if base == common else _from(base, common), split)
        for read, base, split in zip(reads, bases, splits, strict=True)
    ]
    columns = reads[0].columns
    for file, read in zip(files, reads, strict=True):
        _check_same_classes(file, read.columns, files[0], columns)
    names = columns.label_names
    table = read_rows(
        chain(*parts),
        " and ".join(files),
        names[0] if len(names) == 1 else "",
        names if len(names) > 1 else (),
    )
    _check_one_line(table)
    images = images_of_table(
        table,
        common,
        separator=config.separator,
        several=config.several,
        labels=labels,
    )
    own_notes = [each for read in reads for each in read.notes]
    images.source.notes = (*images.source.notes, *own_notes)
    how = _note_on_labels(table.where, columns, images) if note else ()
    known = resolved(config, [read.columns for read in reads], images)
    return FoundLabels(images.openers(), known, how)


def resolved(
    config: LabelConfig, columns: Sequence[Columns], images: TableImages
) -> LabelConfig:
    """The config with everything that was found by itself.

    Tables whose columns differ in their names are not described by one config.
    """
    found = [
        {
            "path_column": each.names[each.path],
            "label_columns": each.label_names,
            "split_column": None if each.split is None else each.names[each.split],
        }
        for each in columns
    ]
    same: dict[str, Any] = {
        name: value
        for name, value in found[0].items()
        if all(each[name] == value for each in found)
    }
    return replace(
        config, separator=images.separator, several=images.is_several, **same
    )


def _note_on_labels(
    title: str, columns: Columns, images: TableImages
) -> tuple[str, ...]:
    """A sentence on the table that was found."""
    several = ""
    if images.is_several:
        several = ", several labels per image"
        if images.separator:
            several += f" separated by {images.separator!r}"
    return (f"Labels: {title} ({columns}{several}).",)


def _split_of(file: str, root: Path) -> str:
    """The split that one of several tables is for."""
    split = split_of(os.path.relpath(file, root))
    if split is None:
        raise UserError(
            f"{file} is one of several tables of labels and is named for no split: "
            "call them train.csv, val.csv and test.csv, or give one."
        )
    return split


def with_base(
    read: ReadFile, root: Path, file: str, split: str
) -> tuple[Iterator[Sequence[Any]], str]:
    """The rows of a table, and the folder that its paths are relative to."""
    rows = iter(read.rows)
    first = list(islice(rows, NUM_TRIED))
    own = os.path.dirname(file)
    folders = [str(root), own, str(root.parent)]
    inner = [*_folders_in(str(root)), *_folders_in(own)]
    inner.sort(key=lambda folder: split_of(os.path.basename(folder)) != (split or None))
    paths = [str(row[read.columns.path] or "?") for row in first]
    base = find_root(paths, list(dict.fromkeys([*folders, *inner])), file)
    return chain(first, rows), base


def _folders_in(folder: str) -> list[str]:
    """Some of the folders in a folder."""
    with suppress(OSError), os.scandir(folder or ".") as entries:
        names = sorted(entry.name for entry in entries if is_dir(entry))
        return [os.path.join(folder, name) for name in names[:_MAX_FOLDERS]]
    return []


def _from(folder: str, start: str) -> str:
    """The path of one folder from another, to put before names."""
    return os.path.join(os.path.relpath(folder or ".", start or "."), "")


def _check_one_line(table: LabelTable) -> None:
    """Refuses labels with line breaks: a quote that is not closed takes in rows."""
    for number, value in enumerate(table.values):
        if isinstance(value, str) and "\n" in value:
            name = table.names[int(np.argmax(table.value_of == number))]
            raise UserError(
                f"{table.where} gives {on_one_line(name)} a label of several lines, "
                f"{on_one_line(value)[:40]!r}: close its quotes, or remove them."
            )


def _check_same_classes(
    file: str, columns: Columns, first_file: str, first: Columns
) -> None:
    """Refuses tables with other columns of 0 and 1 than the first."""
    both = (columns.label_names, first.label_names)
    if both[0] != both[1] and max(map(len, both)) > 1:
        raise UserError(
            f"{file} has other columns of classes than {first_file}: both need the "
            "same."
        )


def _find_file(root: Path, file: str) -> str:
    """A table as given, or in the folder of the images."""
    path = os.path.expanduser(file)
    for each in (path, os.path.join(root, path)):
        if os.path.isfile(each):
            return each
    known = sorted({name for f in (".", root) for name in files_in(Path(f))})
    close = close_matches(os.path.basename(path), known)
    hint = f" Did you mean {' or '.join(close)}?" if close else ""
    if known and not close:
        hint = f" There is {', '.join(known)}."
    raise UserError(f"There is no file {file}, here or in {root}.{hint}")


def files_in(folder: Path, suffixes: tuple[str, ...] = TABLE_SUFFIXES) -> list[str]:
    with suppress(OSError), os.scandir(folder) as entries:
        return [
            entry.name
            for entry in entries
            if entry.name.lower().endswith(suffixes) and entry.is_file()
        ]
    return []
