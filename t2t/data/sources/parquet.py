"""Images in parquet files, as Hugging Face lays them out."""

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from t2t.data.decoding.damage import unread
from t2t.data.sources.base import Indices, Source
from t2t.data.sources.filenames import group_by_split
from t2t.data.sources.folder import files_below
from t2t.data.sources.labels import labels_and_classes
from t2t.data.sources.parquet_columns import Columns, columns_of
from t2t.data.sources.storage import read_whole, unopened
from t2t.errors import UserError, lack

CACHE_BYTES = 1 << 30
_MAX_OPEN_FILES = 64


def find_parquet_splits(root: Path) -> dict[str, Callable[[], Source]]:
    """Each split that the files' names tell of, or the whole as "all"."""
    if root.is_file():
        files = [str(root)]
        root = root.parent
    else:
        files = files_below(str(root), ".parquet")
        if not files:
            raise UserError(f"{root} holds no .parquet files.")
    groups = group_by_split(files, str(root))
    return {split: _opener(files) for split, files in groups.items()}


def _opener(files: list[str]) -> Callable[[], Source]:
    return lambda: ParquetSource(files)


class ParquetSource(Source):
    """Rows of parquet files; row groups are read as needed and the last ones kept."""

    def __init__(self, files: Sequence[str], cache_bytes: int = CACHE_BYTES) -> None:
        self.files = tuple(files)
        self.cache_bytes = cache_bytes
        self._forget()
        metadata = [self._file(number).metadata for number in range(len(self.files))]
        self.columns = self._columns(0)
        # A row's place: which file, which row group of it, which row of that.
        self._group_file = np.repeat(
            np.arange(len(self.files)), [m.num_row_groups for m in metadata]
        )
        self._group_inner = np.concatenate(
            [np.arange(m.num_row_groups) for m in metadata]
        )
        groups = [m.row_group(g) for m in metadata for g in range(m.num_row_groups)]
        self._group_ends = np.cumsum([g.num_rows for g in groups], dtype=np.int64)
        self._largest_group = max((g.total_byte_size for g in groups), default=1)
        self.labels, self.classes = self._read_labels()

    def _forget(self) -> None:
        """Close all files and empty the cache: both belong to one process."""
        self._open: OrderedDict[int, Any] = OrderedDict()
        self._cache: OrderedDict[int, Any] = OrderedDict()
        self._cached_bytes = 0
        self._lock = threading.Lock()
        self._process = os.getpid()

    def __getstate__(self) -> dict[str, Any]:
        private = ("_open", "_cache", "_cached_bytes", "_lock", "_process")
        return {k: v for k, v in self.__dict__.items() if k not in private}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    def _file(self, number: int) -> Any:
        """The open file; the caller holds the lock, or is alone."""
        if number not in self._open:
            pyarrow = import_pyarrow()
            path = self.files[number]
            with _readable(path):
                # Not mapped to memory: a file cut short would then end this process.
                self._open[number] = pyarrow.parquet.ParquetFile(path)
            # Data sets have more files than a process may hold open.
            while len(self._open) > _MAX_OPEN_FILES:
                self._open.popitem(last=False)
        return self._open[number]

    def _columns(self, number: int) -> Columns:
        path = self.files[number]
        with _readable(path):
            return columns_of(self._file(number).schema_arrow, path)

    def _read_labels(self) -> tuple[Indices, tuple[str, ...]]:
        values: list[Any] = []
        for number, path in enumerate(self.files):
            self._check_alike(self._columns(number), path)
            with _readable(path):
                column = self._file(number).read([self.columns.label])[
                    self.columns.label
                ]
                values += column.to_pylist()
        where = os.path.commonpath(self.files) if len(self.files) > 1 else self.files[0]
        if not values:
            raise UserError(f"{where} holds no images.")
        return labels_and_classes(values, self.columns.classes, where)

    def _check_alike(self, columns: Columns, path: str) -> None:
        """Refuse a file whose labels or images mean something else."""
        first = self.columns
        if first.classes is None or columns.classes is None:  # as one of them says
            columns = replace(columns, classes=first.classes)
        if columns != first:
            raise UserError(
                f"{path} has other columns or classes than {self.files[0]}: these "
                "files do not belong together, so give the path of one of their "
                "folders."
            )

    def _place(self, index: int) -> tuple[int, int]:
        group = int(np.searchsorted(self._group_ends, index, side="right"))
        start = int(self._group_ends[group - 1]) if group else 0
        return group, index - start

    def _group(self, group: int) -> Any:
        with self._lock:
            if group in self._cache:
                self._cache.move_to_end(group)
                return self._cache[group]
            file = self._file(int(self._group_file[group]))
            table = file.read_row_group(
                int(self._group_inner[group]),
                columns=[self.columns.image],
                use_threads=False,  # one column: threads would only wait
            )
            column = table[self.columns.image].combine_chunks()
            start = self._group_ends[group - 1] if group else 0
            if len(column) != self._group_ends[group] - start:
                raise OSError("rows are missing")  # and others in their places
            self._cache[group] = column
            self._cached_bytes += column.nbytes
            while self._cached_bytes > self.cache_bytes and len(self._cache) > 1:
                _, oldest = self._cache.popitem(last=False)
                self._cached_bytes -= oldest.nbytes
            return column

    def read(self, index: int) -> bytes:
        if self._process != os.getpid():  # after a fork the lock may be held for ever
            self._forget()
        group, row = self._place(index)
        try:
            return self._bytes(group, row)
        except _errors(ValueError) as error:  # of which is a NUL in a path
            raise unread(self.name(index), error) from error

    def _bytes(self, group: int, row: int) -> bytes:
        image = self._group(group)[row].as_py() or b""
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

    def name(self, index: int) -> str:
        group, _ = self._place(index)
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


def import_pyarrow() -> Any:
    """The pyarrow package with its parquet part, or a sentence on how to get it."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise UserError("Parquet files need pyarrow: pip install pyarrow.") from error
    return pyarrow


def _errors(*others: type[Exception]) -> tuple[type[Exception], ...]:
    """What a damaged file makes pyarrow raise, or a path that is no text."""
    kinds = (OSError, MemoryError, UnicodeError)
    return (import_pyarrow().ArrowException, *kinds, *others)


@contextmanager
def _readable(path: str) -> Iterator[None]:
    """Names a file that cannot be read."""
    try:
        yield
    except _errors() as error:
        if isinstance(error, OSError) and error.errno:  # of the disk, not of parquet
            raise unopened(path, error) from error
        raise lack(path, error) or UserError(
            f"{path} cannot be read as parquet ({error}): copy it again."
        ) from error
