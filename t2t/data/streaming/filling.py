"""Images read into memory, as files or as pixels: a worker's part of a batch."""

import threading
import time
from collections import deque
from concurrent.futures import CancelledError, ThreadPoolExecutor
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64
from torch import Tensor

from t2t.data.decoding.damage import DamagedImage
from t2t.data.decoding.decode import DecodeOptions, decode
from t2t.data.decoding.jpegs import header_for_gpu
from t2t.data.sources.base import Source
from t2t.data.streaming.memory import Block, Bytes

Wanted = Int64[np.ndarray, "images 3"]
"""An image's index; start and length of its file, if that lies in memory already."""
Rows = Int64[np.ndarray, "images 6"]
"""What came of an image: a `Kind`, start, length, height, width, orientation."""
NUM_COLUMNS = 6

# Where most of the last reads took longer than `_SLOW_READ` seconds, the storage is
# far, and many threads wait for it at once. For what is in memory already they would
# only queue for the GIL.
_SLOW_READ = 5e-4
_NUM_TIMED = 4


class Kind(IntEnum):
    """In which form an image lies in memory."""

    JPEG = 0
    """A whole file that nvJPEG may be given."""
    FILE = 1
    PLANAR = 2
    INTERLEAVED = 3
    DAMAGED = 4


class Filled(NamedTuple):
    """What a worker has done: rows for the first images, or all."""

    rows: Rows
    reasons: dict[int, str]
    """Why an image is damaged, by its row."""
    num_bytes_missing: int = 0
    """What the first image left out needs, where the block was too small for all."""


class Filler:
    """Reads and decodes images of a source into memory, for many threads at once."""

    def __init__(
        self, source: Source, decoding: DecodeOptions, array: Bytes, num_readers: int
    ) -> None:
        self.source = source
        self.decoding = decoding
        self.array = array
        self.halted = threading.Event()
        self._seconds: deque[float] = deque(maxlen=16)
        self._num_readers = num_readers
        self._readers: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()

    def fill(self, wanted: Wanted, decodes: bool, block: Block) -> Filled:
        """Writes images to a block one after the other, until all are or it is full."""
        rows: list[tuple[int, ...]] = []
        reasons: dict[int, str] = {}
        start, end = block.start, block.end
        missing = 0
        for data in self._read_all(wanted):
            self._check_halted()
            try:
                if isinstance(data, DamagedImage):
                    raise data
                (kind, *sizes), stored = self._stored(data, decodes)
            except DamagedImage as damaged:
                reasons[len(rows)] = damaged.reason
                rows.append((Kind.DAMAGED, 0, 0, 0, 0, 1))
                continue
            if start + stored.size > end:
                missing = stored.size
                break
            self.array[start : start + stored.size] = stored.reshape(-1)
            rows.append((kind, start, stored.size, *sizes))
            start += stored.size
        table = np.array(rows, dtype=np.int64).reshape(-1, NUM_COLUMNS)
        return Filled(table, reasons, missing)

    def close(self) -> None:
        """Ends its threads; the next slow read would start others."""
        with self._lock:
            readers, self._readers = self._readers, None
        if readers is not None:
            readers.shutdown(wait=True, cancel_futures=True)

    def _stored(
        self, data: bytes | Tensor, decodes: bool
    ) -> tuple[tuple[int, int, int, int], np.ndarray]:
        """An image's kind, sizes and orientation, and what to write."""
        if isinstance(data, bytes) and not decodes:
            header = header_for_gpu(data, self.decoding.max_pixels)
            array = np.frombuffer(data, dtype=np.uint8)
            if header is None:
                return (Kind.FILE, 0, 0, 1), array
            described = header.height, header.width, header.orientation
            return (Kind.JPEG, *described), array
        array = decode(data, **self.decoding._asdict()).numpy()
        _, height, width = array.shape
        rows = array.transpose(1, 2, 0)
        if rows.flags.c_contiguous and not array.flags.c_contiguous:
            return (Kind.INTERLEAVED, height, width, 1), rows
        return (Kind.PLANAR, height, width, 1), array

    def _read_all(self, wanted: Wanted) -> list[bytes | Tensor | DamagedImage]:
        """All files, by this thread or by many where that is slow."""
        datas: list[bytes | Tensor | DamagedImage] = []
        each = wanted.tolist()
        # These are read alone: many at once look slow wherever they are.
        for number in range(min(_NUM_TIMED, len(each))):
            started = time.perf_counter()
            datas.append(self._read(each[number]))
            self._seconds.append(time.perf_counter() - started)
            if self._is_slow():
                return datas + list(self._many().map(self._read, each[number + 1 :]))
        return datas + [self._read(one) for one in each[_NUM_TIMED:]]

    def _read(self, wanted: tuple[int, int, int]) -> bytes | Tensor | DamagedImage:
        self._check_halted()
        index, start, length = wanted
        if length:
            return self.array[start : start + length].tobytes()
        try:
            return self.source.read(index)
        except DamagedImage as damaged:
            return damaged

    def _is_slow(self) -> bool:
        seconds = sorted(self._seconds)
        return len(seconds) >= _NUM_TIMED and seconds[len(seconds) // 4] > _SLOW_READ

    def _many(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._readers is None:
                self._readers = ThreadPoolExecutor(self._num_readers, "t2t-read")
            return self._readers

    def _check_halted(self) -> None:
        if self.halted.is_set():
            raise CancelledError
