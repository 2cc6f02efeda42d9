"""torchvision's data sets, downloaded or from a folder."""

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

from t2t.cache import cache_folder
from t2t.data.sources.base import ArraySource, FileSource, Indices, Source
from t2t.data.sources.labels import read_lines
from t2t.errors import UserError


@dataclass(frozen=True)
class TorchvisionSet:
    """A data set of torchvision: its splits and the layout of its images."""

    class_name: str
    splits: Mapping[str, tuple[Mapping[str, Any], ...]]
    """For each of our splits, the arguments of its parts."""
    layout: str = "files"
    """files (takes a `loader`), pets, rows (channels last, or none) or planes."""


_TRAIN_FLAG = {"train": ({"train": True},), "test": ({"train": False},)}
_TRAIN_TEST = {"train": ({"split": "train"},), "test": ({"split": "test"},)}
# Results on these sets are reported for training on both parts.
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


def open_torchvision(name: str, split: str, given: Path | None = None) -> Source:
    """One split of a torchvision set, from a given folder or the download cache."""
    known = TORCHVISION_SETS[name]
    folder = given or cache_folder() / "data" / name
    parts = known.splits[split]
    datasets = [
        _make(name, known, folder, arguments, may_download=given is None)
        for arguments in parts
    ]
    if known.layout == "files":
        return _read_files(datasets, folder)
    (dataset,), (arguments,) = datasets, parts
    if known.layout == "pets":
        return open_pets(folder / "oxford-iiit-pet", arguments["split"])
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
    """Downloads a data set atomically."""
    from filelock import FileLock

    folder.parent.mkdir(parents=True, exist_ok=True)
    # Every process of a training run gets here at the same time.
    with FileLock(folder.with_name(f"{folder.name}.lock")):
        if folder.exists():  # another process was first, or a split is missing
            make(folder, True)
            return
        # torchvision takes half an archive for a whole one.
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


def open_pets(root: Path, split: str) -> FileSource:
    """Oxford-IIIT Pet, which torchvision gives no loader, by its list of images."""
    path = root / "annotations" / f"{split}.txt"
    rows = [line.split() for line in read_lines(path)]
    for row in rows:
        if len(row) < 2 or not row[1].isdecimal():
            raise UserError(
                f"{path} has the line {' '.join(row)!r}, which should be an image's "
                "name and the number of its class: unpack it again."
            )
    named = {row[1]: row[0].rpartition("_")[0] for row in rows}
    numbers = sorted(named, key=int)
    classes = tuple(named[number].replace("_", " ").title() for number in numbers)
    labels = np.array([numbers.index(row[1]) for row in rows], np.int64)
    return FileSource(
        root / "images", [f"{row[0]}.jpg" for row in rows], labels, classes
    )
