"""Opens data sets in their published layouts."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from t2t.data.sources.base import FileSource, Openers
from t2t.data.sources.cifar import find_cifar_splits
from t2t.data.sources.flat_val import find_flat_splits
from t2t.data.sources.labels import labels_and_classes, read_lines
from t2t.data.sources.torchvision_sets import (
    TORCHVISION_SETS,
    open_pets,
    open_torchvision,
)
from t2t.errors import UserError

# Folders by which data sets that torchvision reads are recognised.
_MARKS = {
    "mnist": "MNIST",
    "fashion_mnist": "FashionMNIST",
    "kmnist": "KMNIST",
    "stl10": "stl10_binary",
    "sun397": "SUN397",
}


def find_published_splits(root: Path, labels: bool = True) -> Openers | None:
    """The splits of a folder that holds a published data set, None for any other."""
    for find in (
        find_cifar_splits,
        partial(find_flat_splits, need_labels=labels),
        _find_flowers,
        _find_pets,
        _find_listed,
        _find_by_torchvision,
    ):
        if (found := find(root)) is not None:
            return found
    return None


def _find_flowers(root: Path) -> Openers | None:
    root = root / "flowers-102" if (root / "flowers-102").is_dir() else root
    files = [root / "imagelabels.mat", root / "setid.mat"]
    if not (root / "jpg").is_dir() or not any(file.is_file() for file in files):
        return None
    return {
        # Results on this set are reported for training on both.
        "train": partial(_open_flowers, root, ("trnid", "valid")),
        "test": partial(_open_flowers, root, ("tstid",)),
    }


def _open_flowers(root: Path, parts: Sequence[str]) -> FileSource:
    from torchvision.datasets import Flowers102

    labels = _matrix(root / "imagelabels.mat", "labels") - 1
    ids = np.concatenate([_matrix(root / "setid.mat", part) for part in parts])
    if ids.size and not 1 <= ids.min() <= ids.max() <= len(labels):
        raise UserError(
            f"{root / 'setid.mat'} lists images from {ids.min()} to {ids.max()}, and "
            f"imagelabels.mat has classes of {len(labels):,}: download both again."
        )
    chosen = labels[ids - 1]
    numbers = tuple(str(number) for number in range(int(labels.max()) + 1))
    classes = tuple(getattr(Flowers102, "classes", numbers))
    names = [f"image_{number:05d}.jpg" for number in ids.tolist()]
    return FileSource(root / "jpg", names, chosen, classes)


def _matrix(path: Path, name: str) -> Any:
    if not path.is_file():
        raise UserError(f"{path}, the list of images, is missing: download it again.")
    from scipy.io import loadmat

    try:
        return loadmat(path)[name].reshape(-1).astype(np.int64)
    except Exception as error:  # damaged files raise any kind
        raise UserError(
            f"{path} cannot be read ({error}): download it again."
        ) from error


def _find_pets(root: Path) -> Openers | None:
    inner = root / "oxford-iiit-pet"
    root = inner if inner.is_dir() else root
    notes = root / "annotations"
    marks = ("trainval.txt", "test.txt", "list.txt", "trimaps")
    if not (root / "images").is_dir() or not any((notes / m).exists() for m in marks):
        return None
    return {
        "train": partial(open_pets, root, "trainval"),
        "test": partial(open_pets, root, "test"),
    }


def _find_listed(root: Path) -> Openers | None:
    """Data sets with lists of images for each split: Food-101, DTD, FGVC-Aircraft."""
    both = {"train": ("train1", "val1"), "test": ("test1",)}
    for name, mark, lists, reader in (
        (
            "food-101",
            "meta/classes.txt",
            {"train": ("train",), "test": ("test",)},
            _food,
        ),
        ("dtd", "labels/labels_joint_anno.txt", both, _dtd),
        (
            *("fgvc-aircraft-2013b", "data/variants.txt"),
            *({"train": ("trainval",), "test": ("test",)}, _aircraft),
        ),
    ):
        for folder in (root / name, root):
            if (folder / mark).is_file():
                return {
                    split: partial(_open_listed, reader, folder, parts)
                    for split, parts in lists.items()
                }
    return None


def _open_listed(
    reader: Callable[[Path, str], Iterable[tuple[str, str]]],
    folder: Path,
    parts: Sequence[str],
) -> FileSource:
    pairs = [pair for part in parts for pair in reader(folder, part)]
    values = [label for _, label in pairs]
    labels, classes = labels_and_classes(values, None, str(folder))
    return FileSource(folder, [name for name, _ in pairs], labels, classes)


def _food(folder: Path, part: str) -> Iterable[tuple[str, str]]:
    for line in read_lines(folder / "meta" / f"{part}.txt"):
        yield f"images/{line}.jpg", line.partition("/")[0]


def _dtd(folder: Path, part: str) -> Iterable[tuple[str, str]]:
    for line in read_lines(folder / "labels" / f"{part}.txt"):
        yield f"images/{line}", line.partition("/")[0]


def _aircraft(folder: Path, part: str) -> Iterable[tuple[str, str]]:
    for line in read_lines(folder / "data" / f"images_variant_{part}.txt"):
        number, _, label = line.partition(" ")
        yield f"data/images/{number}.jpg", label


def _find_by_torchvision(root: Path) -> Openers | None:
    for name, mark in _MARKS.items():
        if (root / mark).is_dir() or root.name == mark:
            folder = root if (root / mark).is_dir() else root.resolve().parent
            return _torchvision_openers(name, folder)
    if (root / "train_32x32.mat").is_file():
        return _torchvision_openers("svhn", root)
    return None


def _torchvision_openers(name: str, folder: Path) -> Openers:
    splits = TORCHVISION_SETS[name].splits
    return {split: partial(open_torchvision, name, split, folder) for split in splits}
