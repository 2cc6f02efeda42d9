"""Reads and decodes images into memory, in a worker: a thread or a process."""

import threading
import time
from collections import deque
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64
from torch import Tensor

from t2t.data.decoding.damage import DamagedImage
from t2t.data.decoding.decode import DecodeOptions, decode
from t2t.data.decoding.jpegs import header_for_gpu
from t2t.data.sources.base import Source
from t2t.data.streaming.shared_memory import NUM_COLUMNS, Block, Bytes, ImageKind, Rows

ImagesToRead = Int64[np.ndarray, "images 3"]
"""Per image: index; start and length of its file in the arena, 0 if not read yet."""

# If most of the last reads took longer than `_SLOW_READ` seconds, the storage is slow
# (a network), and many threads read at once. With files in the page cache, threads
# would only wait for the GIL.
_SLOW_READ = 5e-4
_NUM_TIMED = 4


class ReadResult(NamedTuple):
    """The rows of a task's images, up to the first that did not fit."""

    rows: Rows
    reasons: dict[int, str]
    """Why an image is damaged, by its row."""
    num_bytes_missing: int = 0
    """The size of the first image that did not fit into the block, if any."""


class ImageReader:
    """Reads and decodes images of a source into memory; any thread may call it."""

    def __init__(
        self, source: Source, decoding: DecodeOptions, array: Bytes, num_readers: int
    ) -> None:
        self.source = source
        self.options = decoding._asdict()
        self.array = array
        self.is_stopped = False
        self._seconds: deque[float] = deque(maxlen=16)
        self._num_readers = num_readers
        self._readers: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()

    def read_into(
        self, block: Block, wanted: ImagesToRead, decodes: bool
    ) -> ReadResult:
        """Writes images to a block one after the other, until it is full."""
        rows: list[tuple[int, ...]] = []
        reasons: dict[int, str] = {}
        start = block.start
        num_bytes_missing = 0
        for data in self._read_all(wanted):
            self._check_stopped()
            try:
                if isinstance(data, DamagedImage):
                    raise data
                (kind, *sizes), stored = self._to_store(data, decodes)
            except DamagedImage as damaged:
                reasons[len(rows)] = damaged.reason
                rows.append((ImageKind.DAMAGED, 0, 0, 0, 0, 1))
                continue
            if start + stored.size > block.end:
                num_bytes_missing = stored.size
                break
            self.array[start : start + stored.size] = stored.reshape(-1)
            rows.append((kind, start, stored.size, *sizes))
            start += stored.size
        table = np.array(rows, dtype=np.int64).reshape(-1, NUM_COLUMNS)
        return ReadResult(table, reasons, num_bytes_missing)

    def close(self) -> None:
        """Ends the reading threads; the next slow read starts new ones."""
        with self._lock:
            readers, self._readers = self._readers, None
        if readers is not None:
            readers.shutdown(wait=True, cancel_futures=True)

    def _to_store(
        self, data: bytes | Tensor, decodes: bool
    ) -> tuple[tuple[int, int, int, int], np.ndarray]:
        """Kind, height, width and orientation of an image, and the bytes to store."""
        if isinstance(data, bytes) and not decodes:
            header = header_for_gpu(data, self.options["max_pixels"])
            array = np.frombuffer(data, dtype=np.uint8)
            if header is None:
                return (ImageKind.FILE, 0, 0, 1), array
            described = header.height, header.width, header.orientation
            return (ImageKind.JPEG, *described), array
        array = decode(data, **self.options).numpy()
        _, height, width = array.shape
        rows = array.transpose(1, 2, 0)
        if rows.flags.c_contiguous and not array.flags.c_contiguous:
            return (ImageKind.INTERLEAVED, height, width, 1), rows
        return (ImageKind.PLANAR, height, width, 1), array

    def _read_all(self, wanted: ImagesToRead) -> list[bytes | Tensor | DamagedImage]:
        """The images, read by this thread or, if the storage is slow, by several."""
        files: list[bytes | Tensor | DamagedImage] = []
        each = wanted.tolist()
        # Timed one at a time: parallel reads are slow on any storage.
        for number in range(min(_NUM_TIMED, len(each))):
            started = time.perf_counter()
            files.append(self._read(each[number]))
            self._seconds.append(time.perf_counter() - started)
            if self._is_slow():
                rest = each[number + 1 :]
                return files + list(self._slow_readers().map(self._read, rest))
        return files + [self._read(one) for one in each[_NUM_TIMED:]]

    def _read(self, wanted: tuple[int, int, int]) -> bytes | Tensor | DamagedImage:
        self._check_stopped()
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

    def _slow_readers(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._readers is None:
                self._readers = ThreadPoolExecutor(self._num_readers, "t2t-read")
            return self._readers

    def _check_stopped(self) -> None:
        if self.is_stopped:
            raise CancelledError
