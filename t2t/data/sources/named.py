"""Data sets known by name: scikit-learn's digits and torchvision's sets."""

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from t2t.data.sources.base import (
    FileSource,
    Indices,
    Source,
    Subset,
    digest,
    held_out_indices,
    no_labels,
)
from t2t.errors import UserError

NUM_DIGITS_HELD_OUT = 360


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


@dataclass(frozen=True)
class TorchvisionSet:
    """How a set of torchvision is asked for its splits, and how it holds images."""

    class_name: str
    parts: Mapping[str, tuple[Mapping[str, Any], ...]]
    """For each of our splits, the arguments that make its parts."""
    layout: str = "files"
    """files (takes a `loader`), pets, rows (channels last or none) or planes."""


_TRAIN_FLAG = {"train": ({"train": True},), "test": ({"train": False},)}
_TRAIN_TEST = {"train": ({"split": "train"},), "test": ({"split": "test"},)}
# As these sets are reported: trained on both smaller parts, judged on the test.
_BOTH_TEST = {
    "train": ({"split": "train"}, {"split": "val"}),
    "test": ({"split": "test"},),
}
_TRAINVAL_TEST = {"train": ({"split": "trainval"},), "test": ({"split": "test"},)}
_ALL: Mapping[str, tuple[Mapping[str, Any], ...]] = {"all": ({},)}

TORCHVISION_SETS = {
    "cifar10": TorchvisionSet("CIFAR10", _TRAIN_FLAG, "rows"),
    "cifar100": TorchvisionSet("CIFAR100", _TRAIN_FLAG, "rows"),
    "mnist": TorchvisionSet("MNIST", _TRAIN_FLAG, "rows"),
    "fashion_mnist": TorchvisionSet("FashionMNIST", _TRAIN_FLAG, "rows"),
    "kmnist": TorchvisionSet("KMNIST", _TRAIN_FLAG, "rows"),
    "svhn": TorchvisionSet("SVHN", _TRAIN_TEST, "planes"),
    "stl10": TorchvisionSet("STL10", _TRAIN_TEST, "planes"),
    "flowers102": TorchvisionSet("Flowers102", _BOTH_TEST),
    "dtd": TorchvisionSet("DTD", _BOTH_TEST),
    "food101": TorchvisionSet("Food101", _TRAIN_TEST),
    "fgvc_aircraft": TorchvisionSet("FGVCAircraft", _TRAINVAL_TEST),
    "pets": TorchvisionSet("OxfordIIITPet", _TRAINVAL_TEST, "pets"),
    "imagenette": TorchvisionSet(
        "Imagenette", {"train": ({"split": "train"},), "val": ({"split": "val"},)}
    ),
    "country211": TorchvisionSet(
        "Country211",
        {
            "train": ({"split": "train"},),
            "val": ({"split": "valid"},),
            "test": ({"split": "test"},),
        },
    ),
    "eurosat": TorchvisionSet("EuroSAT", _ALL),
    "sun397": TorchvisionSet("SUN397", _ALL),
}
NAMES = ("digits", *TORCHVISION_SETS)
DOWNLOADS = ContextVar("DOWNLOADS", default=True)
"""Whether missing data sets are downloaded."""


@contextmanager
def no_downloads() -> Iterator[None]:
    """Raises an error for missing data sets instead of downloading them."""
    before = DOWNLOADS.set(False)
    try:
        yield
    finally:
        DOWNLOADS.reset(before)


def cache_folder() -> Path:
    """Where downloads and indexes are kept: T2T_CACHE, else ~/.cache/t2t."""
    given = os.environ.get("T2T_CACHE")
    return Path(given) if given else Path.home() / ".cache" / "t2t"


def find_named_splits(name: str) -> dict[str, Callable[[], Source]]:
    """Each split of a data set by its name."""
    if name == "digits":
        return {
            "train": lambda: open_digits("train"),
            "val": lambda: open_digits("val"),
        }
    known = TORCHVISION_SETS[name]
    return {split: _opener(name, known, split) for split in known.parts}


def _opener(name: str, known: TorchvisionSet, split: str) -> Callable[[], Source]:
    return lambda: open_torchvision(name, known, split)


def open_digits(split: str) -> Source:
    """1,797 scanned digits of 8 × 8 pixels, 360 of them always held out."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    grey = np.rint(digits.images * (255 / 16)).astype(np.uint8)  # stored as 0 to 16
    images = torch.from_numpy(grey)[:, None]
    labels = digits.target.astype(np.int64)
    source = ArraySource(images, labels, [str(n) for n in range(10)], "digits")
    held = held_out_indices(labels, NUM_DIGITS_HELD_OUT, seed=0)
    if split == "val":
        return Subset(source, held)
    return Subset(source, np.setdiff1d(np.arange(len(source)), held))


def open_torchvision(
    name: str, known: TorchvisionSet, split: str, given: Path | None = None
) -> Source:
    """One split of a torchvision set, from a given folder or the download cache."""
    folder = given or cache_folder() / "data" / name
    parts = known.parts[split]
    datasets = [
        _make(name, known, folder, arguments, may_download=given is None)
        for arguments in parts
    ]
    if known.layout == "files":
        return _read_files(datasets, folder)
    (dataset,), (arguments,) = datasets, parts
    if known.layout == "pets":
        return _read_pets(folder / "oxford-iiit-pet", arguments["split"], dataset)
    title = f"{name} {'/'.join(f'{key}={value}' for key, value in arguments.items())}"
    return _read_array(dataset, known, title.strip())


def _make(
    name: str,
    known: TorchvisionSet,
    folder: Path,
    arguments: Mapping[str, Any],
    *,
    may_download: bool,
) -> Any:
    import torchvision.datasets

    maker = getattr(torchvision.datasets, known.class_name)
    keywords: dict[str, Any] = dict(arguments)
    if known.layout == "files":
        keywords["loader"] = str  # the path itself: nothing is decoded here

    def make(root: Path, download: bool) -> Any:
        return maker(str(root), download=download, **keywords)

    try:
        return make(folder, False)
    except (RuntimeError, OSError) as error:
        # torchvision raises these if files are missing
        if not may_download:
            raise UserError(
                f"{folder} looks like the data set {name}, but some of its files are "
                "missing: unpack its archives there again."
            ) from error
    if not DOWNLOADS.get():
        raise UserError(f"Data set {name!r} is not downloaded to {folder} yet.")
    try:
        _download(folder, make)
        return make(folder, False)
    except (RuntimeError, OSError, ImportError) as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"Data set {name!r} is not in {folder} and could not be downloaded "
            f"({reason}): try again where there is a network, or give the path of a "
            "folder with your own copy."
        ) from error


def _download(folder: Path, make: Callable[[Path, bool], Any]) -> None:
    """Bring a data set here, whole or not at all."""
    from filelock import FileLock

    folder.parent.mkdir(parents=True, exist_ok=True)
    # Every process of a training run comes here at the same moment.
    with FileLock(folder.with_name(f"{folder.name}.lock")):
        if folder.exists():  # by another process meanwhile, or a split is missing
            make(folder, True)
            return
        # Half an archive looks like a whole one to torchvision.
        part = folder.with_name(f"{folder.name}.part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir()
        make(part, True)
        part.rename(folder)


def _read_files(datasets: Sequence[Any], folder: Path) -> FileSource:
    # The loader above makes each item a path and a label.
    items = [dataset[index] for dataset in datasets for index in range(len(dataset))]
    names = [os.path.relpath(path, folder) for path, _ in items]
    labels = np.array([label for _, label in items], np.int64)
    return FileSource(folder, names, labels, _class_names(datasets[0], labels))


def _read_array(dataset: Any, known: TorchvisionSet, title: str) -> ArraySource:
    images = torch.as_tensor(dataset.data)
    if known.layout == "rows":
        images = images[:, None] if images.ndim == 3 else images.permute(0, 3, 1, 2)
    given = dataset.labels if known.layout == "planes" else dataset.targets
    labels = np.asarray(given, np.int64)
    return ArraySource(
        images.contiguous(), labels, _class_names(dataset, labels), title
    )


def _class_names(dataset: Any, labels: Indices) -> tuple[str, ...]:
    classes = getattr(dataset, "classes", None)
    if classes is None:  # SVHN, and Flowers-102 in some versions
        return tuple(str(number) for number in range(int(labels.max()) + 1))
    # Imagenette gives each class a tuple of synonyms.
    return tuple(name if isinstance(name, str) else name[0] for name in classes)


def _read_pets(folder: Path, split: str, dataset: Any) -> FileSource:
    """Oxford-IIIT Pet from its own list: this set of torchvision takes no loader."""
    names, labels = [], []
    for line in (folder / "annotations" / f"{split}.txt").read_text().splitlines():
        stem, number, *_ = line.split()
        names.append(f"{stem}.jpg")
        labels.append(int(number) - 1)
    return FileSource(
        folder / "images", names, np.array(labels, np.int64), tuple(dataset.classes)
    )
