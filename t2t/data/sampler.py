"""Which images each step shows: functions of (seed, step) alone."""

import functools
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from jaxtyping import Bool, Int64
from torch import Tensor

from t2t.data.sources.base import Source
from t2t.data.sources.splitting import dealt_order, permutation
from t2t.errors import UserError
from t2t.shapes import Labels, Pixels

_NUM_DOWNLOADS = 4
Shuffle = Callable[[int, int, int], Int64[np.ndarray, " images"]]
"""Maps (seed, number of the pass, number of images) to the images of that pass: a
permutation, or as many samples of balanced classes, which may hold an image twice."""


class Batch(NamedTuple):
    """One rank's share of a step, on the device."""

    views: tuple[Pixels, ...]
    """The images once per crop, which may differ in size."""
    labels: Labels
    indices: Int64[Tensor, " batch"]
    """The index of each image in the source, after damaged ones were replaced."""
    keys: Int64[Tensor, " batch"]
    """Keys of the random draws; the repeats of an image have different ones."""
    valid: Bool[Tensor, " batch"]
    """False for padding and damaged images, which evaluation must not count."""

    @property
    def images(self) -> Pixels:
        """The first view."""
        return self.views[0]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (*self.views, *self[1:])


class BatchIndices(NamedTuple):
    """The indices of one rank's share of a step, before any file is read."""

    indices: Int64[np.ndarray, " batch"]
    keys: Int64[np.ndarray, " batch"]
    valid: Bool[np.ndarray, " batch"]


class Sampler(Protocol):
    """Chooses the images of every step."""

    @property
    def seed(self) -> int: ...

    def batch_indices(self, step: int) -> BatchIndices: ...


def steps_per_epoch(num_images: int, batch_size: int) -> int:
    """Whole batches in an epoch of `num_images` samples; the partial one is dropped.

    An epoch counts samples, whatever the repeats: with three repeats it shows a third
    of the images, three times each.
    """
    if batch_size > num_images:
        raise UserError(
            f"A batch of {batch_size} is more than the {num_images} images to train "
            f"on: add --set batch_size={max(1, num_images // 2)}, or another "
            f"number up to {num_images}."
        )
    return num_images // batch_size


@functools.lru_cache(maxsize=4)
def shuffled(seed: int, number: int, num_images: int) -> Int64[np.ndarray, " images"]:
    """The permutation of pass `number`."""
    return read_only(permutation(num_images, pass_seed(seed, number)))


class SourceShuffle(ABC):
    """A shuffle of one source, which remembers the last passes."""

    def __init__(self, source: Source, batch_size: int) -> None:
        self._source, self._batch_size = source, batch_size
        self._cached = functools.lru_cache(maxsize=4)(self._shuffled)

    def __call__(
        self, seed: int, number: int, num_images: int
    ) -> Int64[np.ndarray, " images"]:
        return self._cached(seed, number)

    @abstractmethod
    def _shuffled(self, seed: int, number: int) -> Int64[np.ndarray, " images"]:
        """The images of pass `number`."""


class BlockShuffle(SourceShuffle):
    """Permutations of a source that is read in blocks, each by few processes."""

    def _shuffled(self, seed: int, number: int) -> Int64[np.ndarray, " images"]:
        seed = pass_seed(seed, number)
        return read_only(dealt_order(self._source, self._batch_size, seed))


class ShuffleAhead:
    """Computes the permutation of the next pass while a pass is being read.

    For 14 million images that takes seconds, for which training would wait.
    """

    def __init__(self, shuffle: Shuffle) -> None:
        self._shuffle = shuffle
        self._thread: threading.Thread | None = None
        self._started: tuple[int, int] | None = None

    def __call__(
        self, seed: int, number: int, num_images: int
    ) -> Int64[np.ndarray, " images"]:
        if self._thread is not None and self._started == (seed, number):
            self._thread.join()  # rather than compute it twice
        order = self._shuffle(seed, number, num_images)
        if self._started != (seed, number + 1):
            self._started = (seed, number + 1)
            self._thread = threading.Thread(
                target=self._shuffle, args=(seed, number + 1, num_images), daemon=True
            )
            self._thread.start()
        return order


def pass_seed(seed: int, number: int) -> int:
    """The seed of the permutation of pass `number`."""
    # Even, since an order by blocks also uses the seed that follows.
    return 2 * ((seed << 24) + number)


def read_only(order: Int64[np.ndarray, " images"]) -> Int64[np.ndarray, " images"]:
    """The same array, which its users cannot change."""
    order.flags.writeable = False
    return order


@dataclass(frozen=True, kw_only=True)
class TrainingSampler:
    """Shuffled passes over the images without end; `batch_size` is of all ranks.

    Each pass has a new permutation; a last partial batch is dropped. With repeats, a
    batch has ceil(batch_size / repeats) images: all of them once, then again, cut at
    batch_size. With as many ranks as repeats, each copy of an image is on another rank.
    """

    num_images: int
    batch_size: int
    seed: int = 0
    rank: int = 0
    world_size: int = 1
    repeats: int = 1
    shuffle: Shuffle = shuffled

    def batch_indices(self, step: int) -> BatchIndices:
        if self.batch_size % self.world_size:
            raise UserError(
                f"A batch of {self.batch_size} cannot be split over {self.world_size} "
                f"processes; choose a multiple of {self.world_size}."
            )
        num_distinct = -(-self.batch_size // self.repeats)
        steps_per_pass = steps_per_epoch(self.num_images, num_distinct)
        number, position = divmod(step, steps_per_pass)
        first = position * num_distinct
        order = self.shuffle(self.seed, number, self.num_images)
        chosen = order[first : first + num_distinct]
        share = self.batch_size // self.world_size
        samples = np.arange(self.rank * share, (self.rank + 1) * share)
        copy, which = np.divmod(samples, num_distinct)
        indices = chosen[which]
        copy += self.repeats * num_earlier(chosen)[which]
        keys = indices + copy * self.num_images
        return BatchIndices(indices, keys, np.ones(share, dtype=bool))


def num_earlier(values: Int64[np.ndarray, " values"]) -> Int64[np.ndarray, " values"]:
    """How often each value occurs before its position."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    positions = np.arange(len(values))
    is_first = np.append(True, ordered[1:] != ordered[:-1])
    earlier = np.empty_like(positions)
    earlier[order] = positions - np.maximum.accumulate(positions * is_first)
    return earlier


class ReadAhead:
    """A sampler that downloads the blocks of later steps ahead of need."""

    def __init__(
        self,
        sampler: Sampler,
        source: Source,
        num_steps: int,
        warn: Callable[[str], None],
    ) -> None:
        assert source.blocks is not None
        self._sampler, self._source, self._warn = sampler, source, warn
        self._blocks = source.blocks
        self._num_steps = num_steps
        self._next = 0
        self._free = threading.Semaphore(_NUM_DOWNLOADS)
        self._running: dict[int, threading.Thread] = {}

    @property
    def seed(self) -> int:
        return self._sampler.seed

    def batch_indices(self, step: int) -> BatchIndices:
        if not self._next - self._num_steps <= step + 1 <= self._next:
            self._next = step  # another iteration
        for ahead in range(self._next, step + self._num_steps + 1):
            self._start(self._sampler.batch_indices(ahead).indices)
        self._next = step + self._num_steps + 1
        return self._sampler.batch_indices(step)

    def _start(self, indices: Int64[np.ndarray, " batch"]) -> None:
        for block in np.unique(self._blocks[indices]).tolist():
            running = self._running.get(block)
            if running is None or not running.is_alive():
                # A daemon, which an ending program does not wait for.
                self._running[block] = threading.Thread(
                    target=self._fetch, args=(block,), daemon=True
                )
                self._running[block].start()

    def _fetch(self, block: int) -> None:
        # An error is raised where the block is read.
        with self._free, suppress(UserError, OSError):
            self._source.fetch_block(block, self._warn)


@dataclass(frozen=True, kw_only=True)
class EvaluationSampler:
    """Every image exactly once over all ranks; `batch_size` is of all ranks.

    Each rank has a run of images in order, so that it reads its own files only. All
    take equally many steps of equal size: the last ones are padded with the last
    image, `valid` false, which keeps shapes and collectives equal.
    """

    num_images: int
    batch_size: int
    rank: int = 0
    world_size: int = 1
    seed: int = 0

    @property
    def num_steps(self) -> int:
        return -(-self.num_images // (self._share * self.world_size))

    @property
    def _share(self) -> int:
        return -(-self.batch_size // self.world_size)

    def batch_indices(self, step: int) -> BatchIndices:
        first = (self.rank * self.num_steps + step) * self._share
        samples = np.arange(first, first + self._share)
        indices = np.minimum(samples, self.num_images - 1)
        return BatchIndices(indices, indices, samples < self.num_images)
