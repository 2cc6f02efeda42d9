"""Files that list images and their labels: CSV, TSV, JSON and JSON lines."""

import codecs
import csv
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, islice, repeat
from typing import Any

from t2t.data.image_files import is_image_name
from t2t.data.label_config import LabelConfig
from t2t.data.sources.base import Openers
from t2t.data.sources.label_columns import Columns, find_columns, is_header
from t2t.data.sources.label_table import Row, read_rows
from t2t.data.sources.storage import unopened
from t2t.data.sources.table_images import images_of_table
from t2t.errors import UserError, first_line

TABLE_SUFFIXES = (".csv", ".tsv", ".json", ".jsonl")
WORKBOOKS = (".xlsx", ".xls", ".ods", ".numbers")
_WORKBOOK_STARTS = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0")
_DELIMITERS = (",", ";", "\t", "|")
_NUM_LOOKED_AT = 100
"""Rows by which columns are identified."""
_CHUNK = 1 << 20
_BOMS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16"}
_BOMS[codecs.BOM_UTF16_BE] = "utf-16"


def openers_of_table(
    paths: Iterable[str | os.PathLike[str]],
    labels: Iterable[Any] | None,
    splits: Iterable[Any] | None = None,
    root: str | os.PathLike[str] | None = None,
    *,
    where: str = "the table",
    several: bool | None = None,
) -> Openers:
    """Openers for the images of columns of paths, labels and splits.

        frame = pandas.read_csv("labels.csv")
        openers = openers_of_table(frame["file"], frame["breed"], root="photos")
        source = openers["all"]()

    The columns are read once, side by side. Paths are relative to `root`, by default
    the current folder; suffixes such as .jpg may be missing. A label is a text or a
    number, or a list of them for several labels; texts such as "cat;outdoor" and paths
    in several rows also have several. `several` says whether images may have several
    labels; None finds out. None as `labels` gives a source without labels. Splits are
    train, val and test (or validation, …); the openers have the same keys, or "all"
    without splits. Files that are missing are noted in `source.notes`, and refused if
    they are the majority. `splits_of` in open_splits.py makes `Splits` of them.
    """
    rows: Iterable[Row] = zip(
        paths,
        repeat("") if labels is None else labels,
        repeat("") if splits is None else splits,
        strict=False,
    )
    table = read_rows(rows, where)
    return images_of_table(
        table,
        "" if root is None else os.fspath(root),
        several=several,
        labels=labels is not None,
    ).openers()


@dataclass(frozen=True)
class ReadFile:
    """The rows of a file, which are read as they are asked for."""

    columns: Columns
    rows: Iterator[Sequence[Any]]
    notes: tuple[str, ...] = ()
    where: str = "the table"


def is_table_name(path: str) -> bool:
    """Whether a file has the suffix of a table."""
    return path.lower().endswith(TABLE_SUFFIXES)


def read_file(
    path: str, config: LabelConfig, labels: bool = True, guess: bool = True
) -> ReadFile:
    """The columns and the rows of a table in a file.

    Without `guess`, the column of labels has a known name.
    """
    suffix = os.path.splitext(path)[1].lower()
    if suffix in WORKBOOKS:
        raise workbook(path)
    if suffix not in (*TABLE_SUFFIXES, ".txt"):
        raise UserError(
            f"{path} is not a table of labels: give a {', '.join(TABLE_SUFFIXES)} file."
        )
    try:
        encoding, notes = find_encoding(path)
        is_json = suffix in (".json", ".jsonl")
        read = _read_json(path, encoding) if is_json else _read_csv(path, encoding)
        names, first, rest = read
        if not is_json and not is_header(names, config):
            first.insert(0, names)
            names = [str(number + 1) for number in range(len(names))]
        if not names or not first:
            raise UserError(
                f"{path} has {'a header' if names else 'no rows'} and no images: add a "
                "row with a path and a label for every image."
            )
    except OSError as error:
        raise unopened(path, error) from error
    filled = [row for row in first if None not in row] or first
    columns = find_columns(names, filled, config, path, labels=labels, guess=guess)
    return ReadFile(columns, chain(first, rest), (*notes, *columns.notes), path)


def workbook(path: str) -> UserError:
    """The error for a file of Excel, LibreOffice or Numbers."""
    return UserError(
        f"{path} is a workbook: save the sheet as CSV in UTF-8, and give that file."
    )


def find_encoding(path: str) -> tuple[str, tuple[str, ...]]:
    """How a file is encoded, and a note if it is not UTF-8."""
    with open(path, "rb") as file:
        start = file.read(4)
        if not start:
            raise UserError(f"{path} is empty: it should list images and their labels.")
        if start in _WORKBOOK_STARTS:
            raise workbook(path)
        for bom, encoding in _BOMS.items():
            if start.startswith(bom):
                return encoding, ()
        file.seek(0)
        decoder = codecs.getincrementaldecoder("utf-8")()
        try:
            while chunk := file.read(_CHUNK):
                if b"\0" in chunk:
                    raise UserError(
                        f"{path} is not a text file: save the table as CSV in UTF-8."
                    )
                decoder.decode(chunk)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            note = (
                f"{path} is not UTF-8 and was read as Windows-1252 (Latin-1): if names "
                "look wrong, save it as UTF-8."
            )
            return "cp1252", (note,)
    return "utf-8", ()


Rows = Iterator[Sequence[Any]]


def _read_csv(path: str, encoding: str) -> tuple[list[str], list[Any], Rows]:
    """The first row, some that follow and the others."""
    rows = _csv_rows(path, encoding)
    names = list(next(rows, ()))
    return names, list(islice(rows, _NUM_LOOKED_AT)), rows


def _csv_rows(path: str, encoding: str) -> Iterator[Sequence[str]]:
    """The rows of a CSV file without empty ones, each of the length of the first."""
    with open(path, encoding=encoding, errors="replace", newline="") as file:
        delimiter, skipped = _find_delimiter(path, file)
        file.seek(0)
        for _ in range(skipped):
            file.readline()
        reader = csv.reader(file, delimiter=delimiter, skipinitialspace=True)
        width = 0
        try:
            for row in reader:
                if row and len(row) == width:
                    yield row
                elif any(cell.strip() for cell in row):
                    # Empty cells at the end are what a spreadsheet leaves behind.
                    if width and (len(row) < width or any(map(str.strip, row[width:]))):
                        raise UserError(
                            f"Line {reader.line_num} of {path} needs {width} columns "
                            f"and has {len(row)}: fix it, or quote cells that hold "
                            f"{delimiter!r}."
                        )
                    width = width or len(row)
                    yield row
        except csv.Error as error:
            raise UserError(
                f"Line {reader.line_num} of {path} is not CSV ({error}): fix its "
                "quotes, or save the table again."
            ) from error


def _find_delimiter(path: str, file: Iterable[str]) -> tuple[str, int]:
    """The delimiter of the columns, and the number of lines before them."""
    lines = [line for line in islice(file, 20) if line.strip()]
    if lines and lines[0].lower().startswith("sep="):  # as Excel writes it
        return lines[0].strip()[4:5] or ",", 1
    if path.lower().endswith(".tsv"):
        return "\t", 0

    def fitness(delimiter: str) -> tuple[int, int]:
        rows: list[list[str]] = []
        with suppress(csv.Error):  # raised where the rows are read
            rows = list(csv.reader(lines, delimiter=delimiter))
        num = len(rows[0]) if rows else 0
        same = sum(len(row) == num for row in rows)
        return (same if num > 1 else 0), num

    return max(_DELIMITERS, key=fitness), 0


def _read_json(path: str, encoding: str) -> tuple[list[str], list[Any], Rows]:
    """The names of the columns, the first rows and the others."""
    records = _records(path, encoding)
    first = list(islice(records, _NUM_LOOKED_AT))
    names = list(dict.fromkeys(name for record in first for name in record))
    rows = [[record.get(name) for name in names] for record in first]
    return names, rows, ([record.get(name) for name in names] for record in records)


def _records(path: str, encoding: str) -> Iterator[dict[str, Any]]:
    """The objects in a file of JSON lines, of a list, or of labels by path."""
    with open(path, encoding=encoding) as file:
        number = 0
        try:
            start = next((line for line in file if line.strip()), "")
            file.seek(0)
            if not _is_record(start):
                yield from _whole_json(path, json.load(file))
                return
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield _checked(path, number, json.loads(line))
        except UserError:  # of an entry
            raise
        except (ValueError, RecursionError) as error:
            where = f"Line {number} of {path}" if number else path
            raise UserError(
                f"{where} is not JSON ({first_line(error)}): write an object for every "
                'image, such as {"file_name": "1.jpg", "label": "cat"}.'
            ) from error


def _is_record(line: str) -> bool:
    """Whether a line is a whole JSON object, of columns and not of labels by path."""
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        return False
    if not isinstance(content, dict) or "annotations" in content:
        return False
    return not any(map(is_image_name, content))


def _whole_json(path: str, content: Any) -> Iterator[dict[str, Any]]:
    if isinstance(content, dict):
        if "annotations" in content:
            raise UserError(
                f"{path} has boxes or masks, as COCO lists them, and t2t classifies "
                "whole images: list a path and a label for every image."
            )
        content = [{"path": name, "label": label} for name, label in content.items()]
    for number, record in enumerate(content if isinstance(content, list) else ()):
        yield _checked(path, number + 1, record)


def _checked(path: str, number: int, record: Any) -> dict[str, Any]:
    if not isinstance(record, dict):
        raise UserError(
            f"Entry {number} of {path} is {json.dumps(record)[:40]}: write an object "
            'for every image, such as {"file_name": "1.jpg", "label": "cat"}.'
        )
    return record


def rows_of(read: ReadFile, prefix: str = "", split: str = "") -> Iterator[Row]:
    """The path, the label and the split of every row of a file.

    `prefix` goes before every path; `split` is for files without a column of splits.
    """
    columns = read.columns
    path, labels = columns.path, columns.labels
    get_split, split_column = columns.get_split(read.where), columns.split
    for row in read.rows:
        label: Any = "" if not labels else row[labels[0]]
        if len(labels) > 1:
            label = tuple(map(str, (row[each] for each in labels)))
        which = split if split_column is None else get_split(row[split_column])
        yield (f"{prefix}{row[path]}" if prefix else row[path]), label, which
