"""Images in parquet files, as Hugging Face lays them out."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from t2t.data.decoding.damage import unread
from t2t.data.image_files import files_below, read_whole
from t2t.data.sources.base import Indices, Openers, Source, digest, no_labels
from t2t.data.sources.filenames import group_by_split
from t2t.data.sources.labels import labels_and_classes, labels_if_any
from t2t.data.sources.parquet_columns import ParquetColumns, columns_of
from t2t.data.sources.process_cache import ProcessCache
from t2t.data.sources.storage import unopened
from t2t.errors import UserError, machine_error

CACHE_BYTES = 1 << 30
_MAX_OPEN_FILES = 64


def find_parquet_splits(root: Path, labels: bool) -> Openers:
    """The splits that the files are named for; "all" if they name none."""
    if root.is_file():
        files = [str(root)]
        root = root.parent
    else:
        files = files_below(str(root), ".parquet")
        if not files:
            raise UserError(f"{root} holds no .parquet files.")
    groups = group_by_split(files, str(root))
    return {
        split: partial(ParquetSource, files, labels=labels)
        for split, files in groups.items()
    }


class ParquetSource(Source):
    """Rows of parquet files, whose last row groups are kept in memory."""

    def __init__(
        self,
        files: Sequence[str],
        cache_bytes: int = CACHE_BYTES,
        labels: bool = True,
    ) -> None:
        self.files = tuple(files)
        self.cache_bytes = cache_bytes
        # Data sets have more files than a process may hold open.
        self._files: ProcessCache[Any] = ProcessCache(_MAX_OPEN_FILES)
        self._groups: ProcessCache[Any] = ProcessCache(
            cache_bytes, attrgetter("nbytes")
        )
        metadata, columns = [], []
        for number, path in enumerate(self.files):
            file = self._file(number)
            metadata.append(file.metadata)
            with _readable(path):
                columns.append(columns_of(file.schema_arrow, path, labels))
        self.columns = self._common_columns(columns, labels)
        # A row's position: its file, the row group of that, the row of that.
        self._group_file = np.repeat(
            np.arange(len(self.files)), [m.num_row_groups for m in metadata]
        )
        self._group_inner = np.concatenate(
            [np.arange(m.num_row_groups) for m in metadata]
        )
        groups = [m.row_group(g) for m in metadata for g in range(m.num_row_groups)]
        self._group_ends = np.cumsum([g.num_rows for g in groups], dtype=np.int64)
        self._group_bytes = np.array([g.total_byte_size for g in groups], np.int64)
        self._largest_group = int(self._group_bytes.max(initial=1))
        self.labels, self.classes = self._read_labels(labels)

    def _file(self, number: int) -> Any:
        return self._files.get(number, self._open_file)

    def _open_file(self, number: int) -> Any:
        path = self.files[number]
        with _readable(path):
            # Not mapped to memory: a file cut short would then end this process.
            return import_pyarrow().parquet.ParquetFile(path)

    def _common_columns(
        self, columns: Sequence[ParquetColumns], labels: bool
    ) -> ParquetColumns:
        """The columns of all files; an error if labels or images differ in meaning."""
        first = common = columns[0]
        for each, path in zip(columns, self.files, strict=True):
            if None in (first.classes, each.classes):  # only one of them names classes
                each = replace(each, classes=first.classes)
            if each.image != first.image or (labels and each != first):
                raise UserError(
                    f"{path} has other columns or classes than {self.files[0]}: these "
                    "files do not belong together, so give the path of one of their "
                    "folders."
                )
            if each != first:
                common = ParquetColumns(first.image, None, None)
        return common

    def _read_labels(self, needed: bool) -> tuple[Indices, tuple[str, ...]]:
        where = os.path.commonpath(self.files) if len(self.files) > 1 else self.files[0]
        num_rows = int(self._group_ends[-1]) if len(self._group_ends) else 0
        if not num_rows:
            raise UserError(f"{where} holds no images.")
        if (name := self.columns.label) is None:
            return no_labels(num_rows), ()
        values: list[Any] = []
        for number, path in enumerate(self.files):
            with _readable(path):
                values += self._file(number).read([name])[name].to_pylist()
        number_labels = labels_and_classes if needed else labels_if_any
        return number_labels(values, self.columns.classes, where)

    def _position(self, index: int) -> tuple[int, int]:
        group = int(np.searchsorted(self._group_ends, index, side="right"))
        start = int(self._group_ends[group - 1]) if group else 0
        return group, index - start

    def _read_group(self, group: int) -> Any:
        table = self._file(int(self._group_file[group])).read_row_group(
            int(self._group_inner[group]),
            columns=[self.columns.image],
            use_threads=False,  # one column: threads would only wait
        )
        column = table[self.columns.image].combine_chunks()
        start = self._group_ends[group - 1] if group else 0
        if len(column) != self._group_ends[group] - start:
            raise OSError("rows are missing")  # and others are in their positions
        return column

    def read(self, index: int) -> bytes:
        group, row = self._position(index)
        try:
            return self._bytes(group, row)
        except _errors(ValueError) as error:  # as for a NUL in a path
            raise unread(self.name(index), error) from error

    def _bytes(self, group: int, row: int) -> bytes:
        image = self._groups.get(group, self._read_group)[row].as_py() or b""
        # Hugging Face stores bytes beside a path; others plain bytes.
        if isinstance(image, bytes):
            return image
        data: bytes | None = image.get("bytes")
        if data is not None:
            return data
        path = image.get("path")
        if not path:
            return b""
        folder = os.path.dirname(self.files[int(self._group_file[group])])
        return read_whole(Path(folder, os.fsdecode(path)))

    def fingerprint(self) -> str:
        if self.is_labelled:
            return super().fingerprint()
        return digest(self._group_ends, self._group_bytes)

    def name(self, index: int) -> str:
        group, _ = self._position(index)
        number = int(self._group_file[group])
        first = int(np.searchsorted(self._group_file, number))
        start = int(self._group_ends[first - 1]) if first else 0
        return f"{self.files[number]}[{index - start}]"

    @property
    def blocks(self) -> Indices | None:
        if len(self._group_ends) <= self.num_blocks_at_once:
            return None
        counts = np.diff(self._group_ends, prepend=0)
        return np.repeat(np.arange(len(counts)), counts)

    @property
    def num_blocks_at_once(self) -> int:
        return max(self.cache_bytes // self._largest_group, 1)

    @property
    def is_in_memory(self) -> bool:
        return True

    @property
    def is_in_memory_in_order(self) -> bool:
        return False  # a row group at a time


def import_pyarrow() -> Any:
    """The pyarrow package with its parquet part."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise UserError("Parquet files need pyarrow: pip install pyarrow.") from error
    return pyarrow


def _errors(*others: type[Exception]) -> tuple[type[Exception], ...]:
    """The errors of pyarrow for a damaged file, or a path that is not text."""
    kinds = (OSError, MemoryError, UnicodeError)
    return (import_pyarrow().ArrowException, *kinds, *others)


@contextmanager
def _readable(path: str) -> Iterator[None]:
    """Turns errors of reading a file into a UserError that names it."""
    try:
        yield
    except _errors() as error:
        if isinstance(error, OSError) and error.errno:  # of the disk, not of the format
            raise unopened(path, error) from error
        raise machine_error(path, error) or UserError(
            f"{path} cannot be read as parquet ({error}): copy it again."
        ) from error
