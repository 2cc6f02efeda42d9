"""The Source interface and the sources that need no file format."""

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from jaxtyping import UInt8
from torch import Tensor

from t2t.data.decoding.damage import unread
from t2t.data.image_files import read_whole
from t2t.data.sources.label_sets import LabelSets
from t2t.data.sources.packed_names import Indices as Indices
from t2t.data.sources.packed_names import PackedNames


class Source(ABC):
    """Random access to encoded images and their labels, from any process or thread."""

    classes: tuple[str, ...]
    """The names of the classes; empty if the images have no labels."""
    labels: Indices
    """One class number per image; all zero if the images have no labels.

    With `label_sets`, the number of a set instead.
    """
    label_sets: LabelSets | None = None
    """The sets of classes that images have; None if every image has one class."""
    notes: tuple[str, ...] = ()
    """Messages for the user, such as which files were skipped."""

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def is_labelled(self) -> bool:
        return bool(self.classes)

    @property
    def is_multilabel(self) -> bool:
        """Whether an image may have several classes, or none."""
        return self.label_sets is not None

    def drop_labels(self) -> None:
        """Makes this an unlabelled source."""
        self.labels = no_labels(len(self))
        self.classes = ()
        self.label_sets = None

    @abstractmethod
    def read(self, index: int) -> bytes | Tensor:
        """The encoded file, or the decoded uint8 channels × height × width.

        Raises DamagedImage if this image cannot be read, LocalError if the machine is
        at fault.
        """

    @abstractmethod
    def name(self, index: int) -> str:
        """The name of this image in messages."""

    def fingerprint(self) -> str:
        """A hash that differs between sources of different images."""
        if self.is_labelled:
            return digest(*self.labels_to_hash())
        return digest(*(self.name(index).encode() for index in range(len(self))))

    def classes_of(self, index: int) -> tuple[int, ...]:
        """The numbers of an image's classes; empty without labels."""
        if not self.is_labelled:
            return ()
        label = int(self.labels[index])
        if self.label_sets is None:
            return (label,)
        return tuple(
            number for number in self.label_sets[label].tolist() if number >= 0
        )

    def labels_to_hash(self) -> tuple[npt.NDArray[Any], ...]:
        """The part of a source's labels that its fingerprint depends on."""
        if self.label_sets is None:
            return (self.labels,)
        return self.labels, self.label_sets

    @property
    def blocks(self) -> Indices | None:
        """The block that each image is read with; None if each is read alone."""
        return None

    @property
    def num_blocks_at_once(self) -> int:
        """How many blocks can be kept in memory together."""
        return 1

    @property
    def has_remote_blocks(self) -> bool:
        """Whether blocks are downloaded: `fetch_block` then does so ahead of need."""
        return False

    def fetch_block(  # noqa: B027 (most sources have nothing to download)
        self, block: int, warn: Callable[[str], None]
    ) -> None:
        """Downloads a block, unless it is on this machine already."""

    def stop_waiting(self) -> None:  # noqa: B027
        """Ends the waiting of all reads for the network."""

    @property
    def is_in_memory(self) -> bool:
        """Whether it holds images in memory, which each process would need again."""
        return False

    @property
    def is_in_memory_in_order(self) -> bool:
        """The same if images are read in their order."""
        return self.is_in_memory


Openers = Mapping[str, Callable[[], Source]]
"""What opens each split: train, val, test, or all where the data is not split."""


@dataclass(frozen=True)
class Splits:
    """A training set, a validation set and a sentence that describes both."""

    train: Source
    val: Source
    description: str

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes of both sets, without repeats."""
        return tuple(dict.fromkeys((*self.train.notes, *self.val.notes)))


class Subset(Source):
    """Some images of another source, in the order given."""

    def __init__(self, source: Source, indices: Sequence[int] | Indices) -> None:
        self.source = source
        self.indices = np.asarray(indices, np.int64)
        if len(self.indices) and not (
            self.indices.min() >= 0 and self.indices.max() < len(source)
        ):
            raise IndexError(f"an index is outside the {len(source)} images")
        self.classes = source.classes
        self.labels = source.labels[self.indices]
        self.label_sets = source.label_sets
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
    def has_remote_blocks(self) -> bool:
        return self.source.has_remote_blocks

    def fetch_block(self, block: int, warn: Callable[[str], None]) -> None:
        self.source.fetch_block(block, warn)

    def stop_waiting(self) -> None:
        self.source.stop_waiting()

    @property
    def is_in_memory(self) -> bool:
        return self.source.is_in_memory

    @property
    def is_in_memory_in_order(self) -> bool:
        return self.source.is_in_memory_in_order


class FileSource(Source):
    """Images in files, one each."""

    def __init__(
        self,
        root: Path,
        names: Sequence[str],
        labels: Indices,
        classes: tuple[str, ...],
        notes: tuple[str, ...] = (),
    ) -> None:
        self.root = str(root)
        if not isinstance(names, PackedNames):
            names = PackedNames.of(names)
        self.names = names
        self.labels = labels
        self.classes = classes
        self.notes = notes

    def name(self, index: int) -> str:
        return os.path.join(self.root, self.names[index])

    def fingerprint(self) -> str:
        return digest(self.names.data, self.names.ends, *self.labels_to_hash())

    def read(self, index: int) -> bytes:
        name = self.name(index)
        try:
            return read_whole(name)
        except (OSError, MemoryError) as error:
            raise unread(name, error) from error


class ArraySource(Source):
    """Decoded images of one size, held in memory."""

    def __init__(
        self,
        images: UInt8[Tensor, "images channels height width"],
        labels: Sequence[int] | Indices | None = None,
        classes: Sequence[str] = (),
        title: str = "array",
    ) -> None:
        self.images = images
        self.labels = (
            no_labels(len(images)) if labels is None else np.asarray(labels, np.int64)
        )
        self.classes = tuple(classes)
        self.title = title

    def read(self, index: int) -> Tensor:
        return self.images[index]

    def name(self, index: int) -> str:
        return f"{self.title}[{index}]"

    def fingerprint(self) -> str:
        if self.is_labelled:
            return super().fingerprint()
        return digest(self.images.numpy())

    @property
    def is_in_memory(self) -> bool:
        return True


def digest(*parts: bytes | npt.NDArray[Any]) -> str:
    """The SHA-256 of these parts, in order."""
    sha256 = hashlib.sha256()
    for part in parts:
        sha256.update(part if isinstance(part, bytes) else part.tobytes())
    return sha256.hexdigest()


def no_labels(num_images: int) -> Indices:
    """The labels of images that have none: zeros."""
    return np.zeros(num_images, np.int64)
