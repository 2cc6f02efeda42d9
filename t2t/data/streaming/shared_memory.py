"""The arena that workers write images to, and requests for the images of a batch."""

import mmap
import os
import threading
import warnings
import weakref
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import suppress
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Int64, UInt8

from t2t.data.decoding.jpegs import Jpegs
from t2t.data.resources import half_of_all_memory
from t2t.data.sources.base import Indices
from t2t.errors import LocalError
from t2t.ops.ragged import Ragged, empty_rounded_up

Bytes = UInt8[np.ndarray, " bytes"]
Rows = Int64[np.ndarray, "images 6"]
"""Per image: its `ImageKind`, start, length, height, width and Exif orientation."""
NUM_COLUMNS = 6

_MIN_ARENA = 1 << 28
_MIN_BLOCK = 1 << 16
_REGISTER_PORTABLE = 1  # cudaHostRegisterPortable: page-locked for every device
# Seconds between checks for cancellation while waiting.
_CHECK_EVERY = 0.5


class ImageKind(IntEnum):
    """How an image is stored."""

    JPEG = 0
    """A whole file that nvJPEG may decode."""
    FILE = 1
    PLANAR = 2
    INTERLEAVED = 3
    DAMAGED = 4


class Block(NamedTuple):
    """A range of an arena, for one writer at a time."""

    start: int
    size: int

    @property
    def end(self) -> int:
        return self.start + self.size


class Arena:
    """A large address range; its pages get memory when a block first uses them.

    Freed blocks are reused, so their pages are allocated, and page-locked for a CUDA
    device, only once. A shared arena is an anonymous file (memfd), which exists while
    any process has it open.
    """

    def __init__(self, device: torch.device, *, shared: bool = False) -> None:
        self.descriptor = os.memfd_create("t2t") if shared else -1
        self.array = self._reserve(half_of_all_memory())
        self.tensor = torch.from_numpy(self.array)
        self._device = device
        self._page_locked: list[int] = []
        self._free: list[Block] = []
        self._end = 0
        self._lock = threading.Lock()
        weakref.finalize(
            self, _close, self.descriptor, self._page_locked, device, os.getpid()
        )

    def _reserve(self, num_bytes: int) -> Bytes:
        """`num_bytes`, or as many as the system allows."""
        try:
            if self.descriptor < 0:
                return np.empty(num_bytes, dtype=np.uint8)
            os.ftruncate(self.descriptor, num_bytes)
            return map_file(self.descriptor)
        except (OSError, MemoryError):
            if num_bytes < _MIN_ARENA:
                raise
            return self._reserve(num_bytes // 2)

    @property
    def num_bytes(self) -> int:
        """The size of all blocks, free ones included."""
        return self._end

    def allocate(self, num_bytes: int) -> Block:
        """A block of at least `num_bytes`."""
        size = _rounded_up(num_bytes)
        with self._lock:
            fitting = [block for block in self._free if block.size >= size]
            block = min(fitting, key=lambda block: block.size, default=None)
            is_full = self._end + size > len(self.array)
            # A block more than twice as large is kept for larger requests.
            if block is not None and (block.size <= 2 * size or is_full):
                self._free.remove(block)
                return block
            if is_full:
                raise LocalError(
                    f"Prefetched images need more than the {len(self.array):,} bytes "
                    "reserved for them: choose a smaller batch size."
                )
            block = Block(self._end, size)
            self._end += size
        if self._device.type == "cuda":
            self._page_lock(block)
        return block

    def free(self, block: Block) -> None:
        """Allows a block to be allocated again."""
        with self._lock:
            self._free.append(block)

    def _page_lock(self, block: Block) -> None:
        """Page-locks a block, for asynchronous copies to the GPU."""
        address = self.array.ctypes.data + block.start
        # A CUDA context on another device would take memory there.
        with torch.cuda.device(self._device):
            status = torch.cuda.cudart().cudaHostRegister(
                address, block.size, _REGISTER_PORTABLE
            )
        if int(status) == 0:
            self._page_locked.append(address)
            return
        # The next CUDA call in this thread raises the error: make one to clear it.
        with suppress(RuntimeError):
            torch.zeros(1, device=self._device)
        warnings.warn(
            f"CUDA cannot page-lock memory (status {int(status)}): copying images to "
            "the GPU is slower.",
            RuntimeWarning,
            stacklevel=2,
        )


class Request:
    """The images of a batch: a row per image, filled in as workers finish.

    Its blocks are not reused until it is released.
    """

    def __init__(self, indices: Indices, arena: Arena) -> None:
        self.indices = indices
        self.rows = np.zeros((len(indices), NUM_COLUMNS), dtype=np.int64)
        self.reasons: dict[int, str] = {}
        """Why images are damaged, by position in the batch."""
        self.is_released = False
        self._arena = arena
        self._blocks: list[Block] = []
        self._num_tasks = 0
        self._error: BaseException | None = None
        self._changed = threading.Condition()

    def add_tasks(self, num_tasks: int) -> None:
        """Adds tasks that `wait` waits for."""
        with self._changed:
            self._num_tasks += num_tasks

    def add_rows(
        self, positions: Indices, block: Block, rows: Rows, reasons: dict[int, str]
    ) -> bool:
        """Adds the rows of images in a block; False if the request was released."""
        with self._changed:
            if self.is_released:
                self._arena.free(block)
                return False
            self._blocks.append(block)
            self.rows[positions[: len(rows)]] = rows
            for row, reason in reasons.items():
                self.reasons[int(positions[row])] = reason
            if len(rows) == len(positions):
                self._num_tasks -= 1
            if not self._num_tasks:
                self._changed.notify_all()
        return True

    def fail(self, error: BaseException) -> None:
        """Makes `wait` raise this error."""
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    def wait(self, is_cancelled: Callable[[], bool]) -> None:
        """Returns when all tasks are done; raises if one failed or on cancellation."""

        def is_done() -> bool:
            return not self._num_tasks or self._error is not None

        with self._changed:
            while not self._changed.wait_for(is_done, _CHECK_EVERY):
                if is_cancelled():
                    raise CancelledError
            if self._error is not None:
                raise self._error

    def release(self) -> None:
        """Frees its blocks; one that is still written to is freed after that."""
        with self._changed:
            self.is_released = True
            self._error = self._error or CancelledError()
            self._changed.notify_all()
            for block in self._blocks:
                self._arena.free(block)
            self._blocks.clear()

    def positions_of(self, *kinds: ImageKind) -> Indices:
        """Positions in the batch of the images stored in one of these forms."""
        return np.flatnonzero(np.isin(self.rows[:, 0], kinds))

    def jpegs(self) -> Jpegs:
        """The files in the arena that nvJPEG may decode."""
        positions = self.positions_of(ImageKind.JPEG)
        columns = self.rows[positions, 1:].T.copy()
        return Jpegs(self._arena.tensor, positions, *columns)

    def pixels(self, device: torch.device, channels: int) -> tuple[Indices, Ragged]:
        """The positions of decoded images, and their pixels copied to the device."""
        positions = self.positions_of(ImageKind.PLANAR, ImageKind.INTERLEAVED)
        # Sorted by address, so that adjacent images are copied together.
        positions = positions[np.argsort(self.rows[positions, 1])]
        kinds, starts, lengths, heights, widths, _ = self.rows[positions].T.copy()
        pixels = empty_rounded_up(int(lengths.sum()), device)
        block_starts = np.array([block.start for block in self._blocks], dtype=np.int64)
        target = 0
        for first, last in contiguous_runs(starts, starts + lengths, block_starts):
            run = pixels[target : target + last - first]
            if device.type == "cpu":
                # NumPy copies in this thread; torch would use several.
                run.numpy()[:] = self._arena.array[first:last]
            else:
                run.copy_(self._arena.tensor[first:last], non_blocking=True)
            target += last - first
        sizes = torch.from_numpy(heights), torch.from_numpy(widths)
        interleaved = torch.from_numpy(kinds == ImageKind.INTERLEAVED)
        return positions, Ragged.from_parts(pixels, *sizes, interleaved, channels)


def contiguous_runs(
    starts: Indices, ends: Indices, block_starts: Indices
) -> list[tuple[int, int]]:
    """The ranges to copy, each of adjacent images in one block.

    Blocks are page-locked one by one, so no copy may cross a block's end.
    """
    is_cut = (starts[1:] != ends[:-1]) | np.isin(starts[1:], block_starts)
    cuts = np.flatnonzero(is_cut)
    firsts = starts[np.concatenate([[0], cuts + 1])].tolist()
    lasts = ends[np.concatenate([cuts, [-1]])].tolist()
    return list(zip(firsts, lasts, strict=True))


def map_file(descriptor: int) -> Bytes:
    """The bytes of an anonymous file, shared by all processes that map it."""
    return np.frombuffer(mmap.mmap(descriptor, 0), dtype=np.uint8)


def _close(
    descriptor: int, locked_pages: list[int], device: torch.device, process: int
) -> None:
    if descriptor >= 0:
        os.close(descriptor)
    if locked_pages and process == os.getpid():
        with torch.cuda.device(device):
            for address in locked_pages:
                torch.cuda.cudart().cudaHostUnregister(address)


def _rounded_up(num_bytes: int) -> int:
    """Rounded up by an eighth at most, to few sizes, so that blocks can be reused."""
    step = max(1 << max(num_bytes.bit_length() - 4, 0), _MIN_BLOCK)
    return max(-(-num_bytes // step), 1) * step
