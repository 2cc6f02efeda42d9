"""Opens data sets in their published layouts."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from t2t.data.sources.base import FileSource, Source
from t2t.data.sources.cifar import find_cifar_splits
from t2t.data.sources.flat_val import find_flat_splits
from t2t.data.sources.labels import read_list
from t2t.data.sources.named import TORCHVISION_SETS, open_torchvision
from t2t.errors import UserError

Openers = dict[str, Callable[[], Source]]

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
        "train": lambda: _open_flowers(root, ("trnid", "valid")),
        "test": lambda: _open_flowers(root, ("tstid",)),
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
        "train": lambda: _open_pets(root, "trainval"),
        "test": lambda: _open_pets(root, "test"),
    }


def _open_pets(root: Path, split: str) -> FileSource:
    path = root / "annotations" / f"{split}.txt"
    rows = [line.split() for line in _lines(path)]
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
                    split: _list_opener(reader, folder, parts)
                    for split, parts in lists.items()
                }
    return None


def _list_opener(
    reader: Callable[[Path, str], Iterable[tuple[str, str]]],
    folder: Path,
    parts: Sequence[str],
) -> Callable[[], Source]:
    def open_it() -> Source:
        pairs = [pair for part in parts for pair in reader(folder, part)]
        classes = tuple(sorted({label for _, label in pairs}))
        numbers = {label: number for number, label in enumerate(classes)}
        labels = np.array([numbers[label] for _, label in pairs], np.int64)
        return FileSource(folder, [name for name, _ in pairs], labels, classes)

    return open_it


def _food(folder: Path, part: str) -> Iterable[tuple[str, str]]:
    for line in _lines(folder / "meta" / f"{part}.txt"):
        yield f"images/{line}.jpg", line.partition("/")[0]


def _dtd(folder: Path, part: str) -> Iterable[tuple[str, str]]:
    for line in _lines(folder / "labels" / f"{part}.txt"):
        yield f"images/{line}", line.partition("/")[0]


def _aircraft(folder: Path, part: str) -> Iterable[tuple[str, str]]:
    for line in _lines(folder / "data" / f"images_variant_{part}.txt"):
        number, _, label = line.partition(" ")
        yield f"data/images/{number}.jpg", label


def _lines(path: Path) -> list[str]:
    """The lines of a text file without comments and empty lines."""
    if not path.is_file():
        raise UserError(f"{path}, the list of images, is missing: unpack it again.")
    lines = (line.strip() for line in read_list(path).splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def _find_by_torchvision(root: Path) -> Openers | None:
    for name, mark in _MARKS.items():
        if (root / mark).is_dir() or root.name == mark:
            folder = root if (root / mark).is_dir() else root.resolve().parent
            return _openers(name, folder)
    if (root / "train_32x32.mat").is_file():
        return _openers("svhn", root)
    return None


def _openers(name: str, folder: Path) -> Openers:
    known = TORCHVISION_SETS[name]

    def opener(split: str) -> Callable[[], Source]:
        return lambda: open_torchvision(name, known, split, folder)

    return {split: opener(split) for split in known.parts}
