"""Decoded images in memory that the processes of a machine share.

Each process decodes a share of the images and writes them into one anonymous file,
which all of them map. So a machine holds the pixels once, however many processes train
on it, and its memory is freed when they end, even if they are killed.
"""

import errno
import fcntl
import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from t2t.data.resources import half_of_all_memory
from t2t.data.shared_file import (
    TOKEN_BYTES,
    Address,
    address_of,
    new_token,
    open_address,
)
from t2t.data.sources.base import Indices
from t2t.data.streaming.shared_memory import Bytes
from t2t.errors import LocalError
from t2t.log_level import logger
from t2t.ops.ragged import Ragged

_COLUMNS = ("offset", "height", "width", "interleaved", "loaded")
_UNSHARED = (
    "Processes of this machine cannot share memory (%s): each decodes all images."
)
_MEMORY_ERRORS = (errno.ENOSPC, errno.ENOMEM, errno.EFBIG)


class TooLargeToKeep(Exception):  # noqa: N818 (it says what a source is)
    """Decoded images that need more memory than allowed."""

    def __init__(self, max_bytes: float, limit: str | None = None) -> None:
        """`limit` says what `max_bytes` is, if not what was given."""
        super().__init__(max_bytes, limit)
        self.max_bytes, self.limit = max_bytes, limit


class Stopped(Exception):  # noqa: N818 (it says what happened)
    """Another process of this machine has failed, and says why."""


@dataclass(frozen=True)
class Peers:
    """The processes of a run, as those of one machine see them."""

    rank: int
    local_rank: int
    local_size: int
    """Processes of this machine."""
    gather: Callable[[Any], list[Any]]
    """What each process of the run gives, in the order of ranks. All must call it."""

    @property
    def first(self) -> int:
        """The rank of this machine's first process."""
        return self.rank - self.local_rank

    def share_of(self, num_images: int) -> range:
        """The images that this process decodes for its machine."""
        bounds = [
            number * num_images // self.local_size
            for number in (self.local_rank, self.local_rank + 1)
        ]
        return range(*bounds)


class SharedImages:
    """An anonymous file of pixels, and a table of where each image is.

    Processes append in any order; a lock of the file keeps their ranges apart.
    """

    def __init__(self, descriptor: int, num_images: int, num_processes: int) -> None:
        self.descriptor, self.num_images = descriptor, num_images
        num_numbers = 2 + num_processes + num_images * len(_COLUMNS)
        self.start = _whole_pages(TOKEN_BYTES + 8 * num_numbers)
        """Where the pixels start in the file."""
        if os.fstat(descriptor).st_size < self.start:
            os.ftruncate(descriptor, self.start)
        head = mmap.mmap(descriptor, self.start)
        numbers = np.frombuffer(head, np.int64, num_numbers, TOKEN_BYTES)
        self._end, self._stopped = numbers[:1], numbers[1:2]
        self._counts = numbers[2 : 2 + num_processes]
        self._table = numbers[2 + num_processes :].reshape(len(_COLUMNS), num_images)

    @classmethod
    def create(cls, num_images: int, num_processes: int) -> "SharedImages":
        """An empty file, which only this process has open."""
        descriptor = os.memfd_create("t2t-images")
        os.pwrite(descriptor, new_token(), 0)
        return cls(descriptor, num_images, num_processes)

    @property
    def address(self) -> Address:
        """What another process of this machine opens it by."""
        return address_of(self.descriptor)

    @classmethod
    def open(
        cls, address: Address, num_images: int, num_processes: int
    ) -> "SharedImages":
        """The file of another process; an OSError if it cannot be opened."""
        descriptor = open_address(address, os.O_RDWR)
        return cls(descriptor, num_images, num_processes)

    def __del__(self) -> None:
        os.close(self.descriptor)

    @property
    def num_decoded(self) -> int:
        """Images that all processes have written so far."""
        return int(self._counts.sum())

    @property
    def num_bytes(self) -> int:
        """Bytes of pixels so far."""
        return int(self._end[0])

    def stop(self) -> None:
        """Makes the other processes stop at their next images."""
        self._stopped[0] = 1

    def append(
        self,
        process: int,
        positions: range,
        images: Ragged,
        loaded: Indices,
        max_bytes: float,
    ) -> None:
        """Adds images of these positions; `loaded` says which ones they really are."""
        if self._stopped[0]:
            raise Stopped
        size = images.pixels.numel()
        begin = self._allocate(size, max_bytes)
        target = _mapped(self.descriptor, self.start + begin, size)
        torch.from_numpy(target).copy_(images.pixels)
        rows = slice(positions.start, positions.stop)
        columns = (images.offsets + begin, images.heights, images.widths)
        for number, column in enumerate((*columns, images.interleaved)):
            self._table[number, rows] = column.numpy()
        self._table[4, rows] = loaded
        self._counts[process] += len(positions)

    def _allocate(self, size: int, max_bytes: float) -> int:
        """A range of bytes that no other process writes to."""
        half = half_of_all_memory()
        with _locked(self.descriptor):
            begin = self.num_bytes
            if begin + size > min(max_bytes, half):
                if max_bytes <= half:
                    raise TooLargeToKeep(max_bytes)
                raise TooLargeToKeep(half, "half of this machine's memory")
            try:
                # Without memory for it, a first write would kill the process.
                os.posix_fallocate(self.descriptor, self.start + begin, max(size, 1))
            except OSError as error:
                if error.errno in _MEMORY_ERRORS:
                    limit = "all memory that the system gives to share"
                    raise TooLargeToKeep(begin, limit) from error
                raise
            self._end[0] = begin + size
        return begin

    def images(self, channels: int, device: torch.device) -> tuple[Ragged, Indices]:
        """All images, and which image of the source is at each position.

        On a CPU they stay in the file, else they are copied to the device.
        """
        size = self.num_bytes
        # A private mapping: what a process writes is its own.
        length, access = self.start + size, mmap.ACCESS_COPY
        mapping = mmap.mmap(self.descriptor, length, access=access)
        array = np.frombuffer(mapping, np.uint8, size, self.start)
        pixels = torch.from_numpy(array).to(device)
        offsets, heights, widths, interleaved = (
            torch.from_numpy(column.copy()) for column in self._table[:4]
        )
        sizes = heights, widths, interleaved.bool()
        return Ragged(pixels, offsets, *sizes, channels), self._table[4].copy()


def share_memory(peers: Peers, num_images: int) -> SharedImages | None:
    """Memory for the images of this machine; None if its processes cannot share any.

    All processes of the run call it.
    """
    own: SharedImages | None = None
    is_shared = peers.local_size > 1
    if is_shared and peers.local_rank == 0:
        try:
            own = SharedImages.create(num_images, peers.local_size)
        except (OSError, AttributeError) as error:  # no memfd on other systems
            logger.debug(_UNSHARED, error)
    addresses = peers.gather(None if own is None else own.address)
    if is_shared and own is None and (address := addresses[peers.first]) is not None:
        try:
            own = SharedImages.open(address, num_images, peers.local_size)
        except OSError as error:
            logger.debug(_UNSHARED, error)
    have_all = peers.gather(own is not None)
    ours = have_all[peers.first : peers.first + peers.local_size]
    return own if is_shared and all(ours) else None


def raise_together(peers: Peers, error: Exception | None) -> None:
    """Raises an error of any process in all of them, which call this."""
    about: tuple[str, Any] | None = None
    if isinstance(error, TooLargeToKeep):
        about = "large", (error.max_bytes, error.limit)
    elif error is not None and not isinstance(error, Stopped):
        about = "failed", f"{error}" or type(error).__name__
    found = peers.gather(about)
    if about is not None and about[0] == "failed":
        assert error is not None
        raise error
    for rank, each in enumerate(found):
        if each is not None and each[0] == "failed":
            raise LocalError(
                f"Process {rank} could not decode its share of the images: {each[1]}"
            )
    limits = [each[1] for each in found if each is not None]
    if limits:
        raise TooLargeToKeep(*min(limits, key=lambda each: each[0]))


@contextmanager
def _locked(descriptor: int) -> Iterator[None]:
    """Holds the lock of a file against other processes; freed if this one dies."""
    fcntl.lockf(descriptor, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.lockf(descriptor, fcntl.LOCK_UN)


def _mapped(descriptor: int, begin: int, size: int) -> Bytes:
    """A range of a file in memory, for as long as the array is used."""
    first = begin - begin % mmap.ALLOCATIONGRANULARITY
    mapping = mmap.mmap(descriptor, max(begin + size - first, 1), offset=first)
    return np.frombuffer(mapping, np.uint8, size, begin - first)


def _whole_pages(num_bytes: int) -> int:
    return -(-num_bytes // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
