"""Memory that the files and pixels of batches are written to and taken over from."""

import mmap
import os
import threading
import warnings
import weakref
from contextlib import suppress
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import UInt8

from t2t.data.resources import half_of_all_memory
from t2t.data.sources.base import Indices
from t2t.errors import LocalError

Bytes = UInt8[np.ndarray, " bytes"]

_SMALLEST_RANGE = 1 << 28
_SMALLEST_BLOCK = 1 << 16
_PORTABLE = 1  # page-locked for every device, as CUDA numbers it


class Block(NamedTuple):
    """Some of the memory, for one writer at a time."""

    start: int
    size: int

    @property
    def end(self) -> int:
        return self.start + self.size


class Memory:
    """A wide range of addresses; only what was once taken has memory behind it.

    Blocks are given back and taken again, so that their pages are touched, and for a
    CUDA device page-locked, only once. Shared with other processes, the range is a
    file without a name: it goes with the last process that holds it.
    """

    def __init__(self, device: torch.device, *, shared: bool = False) -> None:
        self.descriptor = os.memfd_create("t2t") if shared else -1
        self.array = self._range(half_of_all_memory())
        self.tensor = torch.from_numpy(self.array)
        self._device = device
        self._locked_pages: list[int] = []
        self._free: list[Block] = []
        self._end = 0
        self._lock = threading.Lock()
        weakref.finalize(
            self, _close, self.descriptor, self._locked_pages, device, os.getpid()
        )

    def _range(self, num_bytes: int) -> Bytes:
        """So many bytes, or as many as the system lends."""
        try:
            if self.descriptor < 0:
                return np.empty(num_bytes, dtype=np.uint8)
            os.ftruncate(self.descriptor, num_bytes)
            return mapped(self.descriptor)
        except (OSError, MemoryError):
            if num_bytes < _SMALLEST_RANGE:
                raise
            return self._range(num_bytes // 2)

    @property
    def num_bytes(self) -> int:
        """What was taken at the same time, at most."""
        return self._end

    def take(self, num_bytes: int) -> Block:
        """A block of at least so many bytes that nobody else has."""
        size = _rounded(num_bytes)
        with self._lock:
            fitting = [block for block in self._free if block.size >= size]
            block = min(fitting, key=lambda block: block.size, default=None)
            is_full = self._end + size > len(self.array)
            # A much larger one is kept for what needs it.
            if block is not None and (block.size <= 2 * size or is_full):
                self._free.remove(block)
                return block
            if is_full:
                raise LocalError(
                    f"Images prepared ahead need more than {len(self.array):,} bytes, "
                    "which is all there is for them: choose a smaller batch size."
                )
            block = Block(self._end, size)
            self._end += size
        if self._device.type == "cuda":
            self._lock_pages(block)
        return block

    def give_back(self, block: Block) -> None:
        """Lets others have a block."""
        with self._lock:
            self._free.append(block)

    def _lock_pages(self, block: Block) -> None:
        """Lets the GPU fetch from the block by itself."""
        address = self.array.ctypes.data + block.start
        # A context on a device that is not ours would take its memory.
        with torch.cuda.device(self._device):
            status = torch.cuda.cudart().cudaHostRegister(
                address, block.size, _PORTABLE
            )
        if int(status) == 0:
            self._locked_pages.append(address)
        else:
            # The next launch of this thread would be told of it, and clears it.
            with suppress(RuntimeError):
                torch.zeros(1, device=self._device)
            warnings.warn(
                f"CUDA cannot page-lock memory (status {int(status)}): images reach "
                "the GPU more slowly.",
                RuntimeWarning,
                stacklevel=2,
            )


def pieces_of(
    starts: Indices, ends: Indices, block_starts: Indices
) -> list[tuple[int, int]]:
    """Start and end of what travels together: images one behind the other in a block.

    Blocks are page-locked one by one, and no copy may reach from one to the next.
    """
    is_cut = (starts[1:] != ends[:-1]) | np.isin(starts[1:], block_starts)
    cuts = np.flatnonzero(is_cut)
    firsts = starts[np.concatenate([[0], cuts + 1])].tolist()
    lasts = ends[np.concatenate([cuts, [-1]])].tolist()
    return list(zip(firsts, lasts, strict=True))


def mapped(descriptor: int) -> Bytes:
    """The bytes of a file without a name, the same for all who have it."""
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


def _rounded(num_bytes: int) -> int:
    """An eighth more at most, in a few sizes only, so that blocks are used again."""
    step = max(1 << max(num_bytes.bit_length() - 4, 0), _SMALLEST_BLOCK)
    return max(-(-num_bytes // step), 1) * step
