"""Validation images in one folder, with their classes in a separate file.

ImageNet and Tiny ImageNet are published like this.
"""

import csv
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from t2t.data.image_files import walk
from t2t.data.sources.base import FileSource, Openers
from t2t.data.sources.folder import class_folders, open_folder
from t2t.data.sources.labels import read_list
from t2t.errors import UserError

TINY = "val_annotations.txt"
KAGGLE = "LOC_val_solution.csv"
SYNSETS = "imagenet_2012_validation_synset_labels.txt"
NUMBERS = "ILSVRC2012_validation_ground_truth.txt"
META = "meta.mat"
# Folders that archives unpack to.
_TRAIN = ("train", "ILSVRC2012_img_train")
_VAL = ("val", "ILSVRC2012_img_val")
_INSIDE = (Path("ILSVRC/Data/CLS-LOC"), Path("tiny-imagenet-200"))
_DEVKITS = ("", "ILSVRC2012_devkit_t12/data", "devkit/data", "ILSVRC/devkit/data")
_NUM_ABOVE = 3

Labels = dict[str, str] | list[str]
"""Classes by file name, or in the order of the sorted file names."""


def find_flat_splits(root: Path, need_labels: bool = True) -> Openers | None:
    """The splits, if `train` has class folders and `val` is flat; else None."""
    root = next((root / inner for inner in _INSIDE if (root / inner).is_dir()), root)
    train = next((root / name for name in _TRAIN if (root / name).is_dir()), None)
    val = next((root / name for name in _VAL if (root / name).is_dir()), None)
    if train is None or val is None:
        return None
    folders, images, _ = class_folders(val)
    is_flat = not folders and bool(images)
    is_tiny = folders == ["images"] and (root / "wnids.txt").is_file()
    if not (is_flat or is_tiny or (val / TINY).is_file()):
        return None
    is_published = is_tiny or any(Path(p).name.startswith("ILSVRC2012") for p in images)
    labels = _labels(val, root)
    if labels is None and not is_published:
        return None
    if labels is None and not need_labels:
        return {
            "train": partial(open_folder, train, labels=False),
            "val": partial(open_folder, val, labels=False),
        }
    return {
        "train": partial(open_folder, train),
        "val": partial(_open, train, val, root),
    }


def _open(train: Path, val: Path, root: Path) -> FileSource:
    """The flat folder, with the classes of the training folder."""
    found = _labels(val, root)
    if found is None:
        raise UserError(
            f"The classes of the images in {val} are unknown: put {TINY} into it, or "
            f"one of {KAGGLE}, {SYNSETS}, or {NUMBERS} together with {META}."
        )
    where, labels = found
    names = list(walk(str(val)))
    if isinstance(labels, list):
        if len(labels) != len(names):
            raise UserError(
                f"{where} has {len(labels):,} labels and {val} {len(names):,} images: "
                "unpack both again."
            )
        labels = {Path(n).name: label for n, label in zip(names, labels, strict=True)}
    classes = tuple(class_folders(train)[0])
    numbers = {name: number for number, name in enumerate(classes)}
    found_labels = []
    for name in names:
        label = labels.get(Path(name).name) or labels.get(Path(name).stem)
        if label is None:
            raise UserError(f"{where} has no label for {val / name}: unpack it again.")
        if label not in numbers:
            raise UserError(
                f"{where} has images of the class {label!r}, but {train} has no such "
                "folder: add the folder, or remove the images."
            )
        found_labels.append(numbers[label])
    return FileSource(val, names, np.array(found_labels, np.int64), classes)


def _labels(val: Path, root: Path) -> tuple[Path, Labels] | None:
    """The first file with labels that is found, and its labels."""
    if (val / TINY).is_file():
        lines = read_list(val / TINY).splitlines()
        pairs = (line.split()[:2] for line in lines if len(line.split()) > 1)
        return val / TINY, dict(pairs)
    for folder in _folders(val, root):
        if (folder / KAGGLE).is_file():
            return folder / KAGGLE, _read_kaggle(folder / KAGGLE)
        if (folder / SYNSETS).is_file():
            return folder / SYNSETS, read_list(folder / SYNSETS).split()
        if (folder / NUMBERS).is_file():
            return folder / NUMBERS, _read_numbers(folder)
    return None


def _folders(val: Path, root: Path) -> Iterator[Path]:
    above = [*root.resolve().parents][:_NUM_ABOVE]
    for folder in (val, root, *above):
        for inner in _DEVKITS:
            yield folder / inner


def _read_kaggle(path: Path) -> dict[str, str]:
    lines = csv.reader(read_list(path).splitlines())
    rows = [row for row in lines if len(row) > 1 and row[1].split()]
    return {row[0]: row[1].split()[0] for row in rows}


def _read_numbers(folder: Path) -> list[str]:
    """Class numbers, translated to WordNet ids by the development kit's table."""
    meta = folder / META
    if not meta.is_file():
        raise UserError(
            f"{folder / NUMBERS} needs {META} in the same folder for class names: "
            "unpack the development kit again."
        )
    from scipy.io import loadmat

    try:
        rows = loadmat(meta, squeeze_me=True)["synsets"]
        names = {int(row["ILSVRC2012_ID"]): str(row["WNID"]) for row in rows}
        return [names[int(n)] for n in (folder / NUMBERS).read_text().split()]
    except Exception as error:  # damaged files raise any kind
        raise UserError(
            f"{meta} and {NUMBERS} cannot be read ({error}): unpack the development "
            "kit again."
        ) from error
