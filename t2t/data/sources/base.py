"""The Source interface, and splitting a source into parts."""

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from t2t.data.decoding.damage import unread
from t2t.data.sources.storage import read_whole
from t2t.errors import UserError

Indices = npt.NDArray[np.int64]


class Source(ABC):
    """Random access to encoded images and their labels, from any process or thread."""

    classes: tuple[str, ...]
    """The names of the classes; empty if the images have no labels."""
    labels: Indices
    """One class number per image; all zero if the images have no labels."""
    notes: tuple[str, ...] = ()
    """Messages for the user, such as which files were skipped."""

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def is_labelled(self) -> bool:
        return bool(self.classes)

    def drop_labels(self) -> None:
        """Makes this an unlabelled source."""
        self.labels = no_labels(len(self))
        self.classes = ()

    @abstractmethod
    def read(self, index: int) -> bytes | Tensor:
        """The encoded file, or the decoded uint8 channels × height × width.

        Raises DamagedImage where it cannot be read, LocalError where the machine can
        read none.
        """

    @abstractmethod
    def name(self, index: int) -> str:
        """What to call this image in a message."""

    def fingerprint(self) -> str:
        """A hash that differs between sources of different images."""
        if self.is_labelled:
            return digest(self.labels)
        return digest(*(self.name(index).encode() for index in range(len(self))))

    @property
    def blocks(self) -> Indices | None:
        """For each image the block it is read with; None where each is read alone."""
        return None

    @property
    def num_blocks_at_once(self) -> int:
        """How many blocks can be kept in memory together."""
        return 1

    @property
    def is_in_memory(self) -> bool:
        """Whether it keeps images, so that every process would need their memory."""
        return False


@dataclass(frozen=True)
class Splits:
    """A training set, the set it is judged by, and a sentence about where from."""

    train: Source
    val: Source
    description: str

    @property
    def notes(self) -> tuple[str, ...]:
        """What either set has to tell, once."""
        return tuple(dict.fromkeys((*self.train.notes, *self.val.notes)))


class Subset(Source):
    """Some images of another source, in the order given."""

    def __init__(self, source: Source, indices: Sequence[int] | Indices) -> None:
        self.source = source
        self.indices = np.asarray(indices, np.int64)
        if len(self.indices) and not (
            self.indices.min() >= 0 and self.indices.max() < len(source)
        ):
            raise IndexError(f"a subset of {len(source)} images reaches outside it")
        self.classes = source.classes
        self.labels = source.labels[self.indices]
        self.notes = source.notes

    def read(self, index: int) -> bytes | Tensor:
        return self.source.read(int(self.indices[index]))

    def name(self, index: int) -> str:
        return self.source.name(int(self.indices[index]))

    def fingerprint(self) -> str:
        return digest(self.source.fingerprint().encode(), self.indices)

    @property
    def blocks(self) -> Indices | None:
        blocks = self.source.blocks
        return None if blocks is None else blocks[self.indices]

    @property
    def num_blocks_at_once(self) -> int:
        return self.source.num_blocks_at_once

    @property
    def is_in_memory(self) -> bool:
        return self.source.is_in_memory


class FileSource(Source):
    """Images that are files on a disk, one each."""

    def __init__(
        self,
        root: Path,
        names: Sequence[str],
        labels: Indices,
        classes: tuple[str, ...],
        notes: tuple[str, ...] = (),
    ) -> None:
        self.root = str(root)
        # One block of bytes: a million Python strings cost ten times the memory
        # and are copied into every worker process by reference counting.
        encoded = [os.fsencode(name) for name in names]
        self._names = b"".join(encoded)
        self._ends = np.cumsum([len(name) for name in encoded], dtype=np.int64)
        self.labels = labels
        self.classes = classes
        self.notes = notes

    def name(self, index: int) -> str:
        start = int(self._ends[index - 1]) if index else 0
        name = os.fsdecode(self._names[start : int(self._ends[index])])
        return os.path.join(self.root, name)

    def fingerprint(self) -> str:
        return digest(self._names, self._ends, self.labels)

    def read(self, index: int) -> bytes:
        name = self.name(index)
        try:
            return read_whole(name)
        except (OSError, MemoryError) as error:
            raise unread(name, error) from error


def digest(*parts: bytes | npt.NDArray[Any]) -> str:
    """The SHA-256 of these parts, in order."""
    sha256 = hashlib.sha256()
    for part in parts:
        sha256.update(part if isinstance(part, bytes) else part.tobytes())
    return sha256.hexdigest()


def no_labels(num_images: int) -> Indices:
    """The labels of images that have none: zeros."""
    return np.zeros(num_images, np.int64)


def holdout(source: Source, num: int, seed: int = 0) -> tuple[Source, Source]:
    """Splits off `num` images, stratified by class; returns the rest and these.

    At least one image of every class stays in the rest.
    """
    most = len(source) - len(np.unique(source.labels))
    if not 0 < num <= most:
        left = "one of each class" if source.is_labelled else "one"
        raise UserError(
            f"Cannot hold {num} of {len(source)} images out, with {left} left to train "
            f"on: give a number from 1 to {most}."
        )
    return _split(source, held_out_indices(source.labels, num, seed, left=1))


def _split(source: Source, held: Indices) -> tuple[Source, Source]:
    kept = np.setdiff1d(np.arange(len(source)), held)
    return Subset(source, kept), Subset(source, held)


def split_by_seed(
    source: Source, fraction: float, seed: int, where: str, *, labels: bool = True
) -> tuple[Source, Source]:
    """A training and a validation part, both with images of every class.

    Without `labels`, a class with a single image is no error: the split then ignores
    the classes.
    """
    if not 0 < fraction < 1:
        raise UserError(
            f"A validation fraction of {fraction} leaves nothing to train on or to "
            "evaluate on: give a number between 0 and 1, such as 0.1."
        )
    strata = source.labels
    counts = np.bincount(strata, minlength=len(source.classes))
    if (counts == 1).any():
        if labels:
            single = source.classes[int(np.flatnonzero(counts == 1)[0])]
            raise UserError(
                f"Class {single!r} of {where} has a single image, and a split needs "
                "one to train on and one to evaluate on: add images, remove the class, "
                "or give train and val folders."
            )
        if len(source) == 1:
            raise UserError(
                f"{where} has a single image, and a split needs one to train on and "
                "one to evaluate on: add images."
            )
        strata = no_labels(len(source))
    num = round(len(source) * fraction)
    return _split(source, held_out_indices(strata, num, seed, minimum=1, left=1))


def held_out_indices(
    labels: Indices, num: int, seed: int, minimum: int = 0, left: int = 0
) -> Indices:
    """`num` indices, in order, that share out over the classes as all images do.

    At least `minimum` of each class are taken, and as many as `left` are not.
    """
    counts = np.bincount(labels)
    quotas = _share_out(counts, num, minimum, left)
    # Images in random order, then stably by class: each class's first are taken.
    order = permutation(len(labels), seed)
    order = order[np.argsort(labels[order], kind="stable")]
    starts = np.cumsum(counts) - counts
    rank = np.arange(len(labels)) - starts[labels[order]]
    chosen: Indices = np.sort(order[rank < quotas[labels[order]]])
    return chosen


def _share_out(counts: Indices, num: int, minimum: int, left: int) -> Indices:
    """Whole numbers that add up to `num`, in proportion to the counts."""
    exact = counts * (num / counts.sum())
    low = np.minimum(minimum, counts)
    high = np.maximum(counts - left, low)
    quotas: Indices = np.clip(np.floor(exact).astype(np.int64), low, high)
    while (missing := num - int(quotas.sum())) != 0:
        step = 1 if missing > 0 else -1
        free = np.flatnonzero(quotas < high if step > 0 else quotas > low)
        if not len(free):
            break
        neediest = free[np.argsort(step * (quotas - exact)[free], kind="stable")]
        quotas[neediest[: abs(missing)]] += step
    return quotas


def permutation(num: int, seed: int) -> Indices:
    """A random order of `num` things that no library's next version changes."""
    return np.argsort(_scrambled(np.arange(num), seed), kind="stable").astype(np.int64)


def _scrambled(numbers: Indices, seed: int) -> npt.NDArray[np.uint64]:
    """64 well-mixed bits for each number: the finaliser of splitmix64."""
    with np.errstate(over="ignore"):
        start = np.uint64(seed % 2**64) * np.uint64(0xD1342543DE82EF95)
        bits = start + (numbers.astype(np.uint64) + np.uint64(1)) * np.uint64(
            0x9E3779B97F4A7C15
        )
        bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed: npt.NDArray[np.uint64] = bits ^ (bits >> np.uint64(31))
    return mixed


def mixed_order(source: Source, seed: int) -> Indices:
    """All images in random order; where they are read in blocks, few blocks at a time.

    A source that reads blocks gets whole blocks in random order, as many together
    as it keeps in memory, and the images of these shuffled: no block is read twice.
    """
    order = permutation(len(source), seed)
    blocks = source.blocks
    if blocks is None:
        return order
    _, numbered = np.unique(blocks, return_inverse=True)
    place = np.argsort(permutation(int(numbered.max()) + 1, seed + 1))
    window = place[numbered] // max(source.num_blocks_at_once, 1)
    return order[np.argsort(window[order], kind="stable")]
