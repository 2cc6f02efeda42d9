"""CIFAR-10 and CIFAR-100 as published: the Python and the binary version."""

import pickle
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8

from t2t.data.sources.base import ArraySource, Indices, Openers, Source
from t2t.errors import UserError

_SIDE = 32
_NUM_VALUES = 3 * _SIDE * _SIDE


@dataclass(frozen=True)
class Layout:
    """The files of one archive, and where the labels are in them."""

    folder: str
    splits: dict[str, tuple[str, ...]]
    names: str
    """The file with the names of the classes."""
    label: str = ""
    """The key of the labels in a pickled batch; empty for the binary version."""
    names_key: str = ""
    num_label_bytes: int = 1
    """Bytes before each image; the last is the label."""


_FIVE = tuple(f"data_batch_{number}" for number in range(1, 6))
LAYOUTS = (
    Layout(
        "cifar-10-batches-py",
        {"train": _FIVE, "test": ("test_batch",)},
        "batches.meta",
        "labels",
        "label_names",
    ),
    Layout(
        "cifar-100-python",
        {"train": ("train",), "test": ("test",)},
        "meta",
        "fine_labels",
        "fine_label_names",
    ),
    Layout(
        "cifar-10-batches-bin",
        {
            "train": tuple(f"{name}.bin" for name in _FIVE),
            "test": ("test_batch.bin",),
        },
        "batches.meta.txt",
    ),
    Layout(
        "cifar-100-binary",
        {"train": ("train.bin",), "test": ("test.bin",)},
        "fine_label_names.txt",
        num_label_bytes=2,
    ),
)


def find_cifar_splits(root: Path) -> Openers | None:
    """The splits of a folder that is an unpacked archive or contains one."""
    for layout in LAYOUTS:
        first = layout.splits["train"][0]
        for folder in (root / layout.folder, root):
            files = (folder / first, folder / layout.names)
            is_named = folder.name == layout.folder and folder.is_dir()
            if is_named or all(file.is_file() for file in files):
                return {
                    split: partial(_open, folder, layout, split)
                    for split in layout.splits
                }
    return None


def _open(folder: Path, layout: Layout, split: str) -> Source:
    wanted = (*layout.splits[split], layout.names)
    missing = [name for name in wanted if not (folder / name).is_file()]
    if missing:
        raise UserError(
            f"{folder} lacks {' and '.join(missing)} of {layout.folder}: unpack the "
            "archive again."
        )
    batches = [_batch(folder / name, layout) for name in layout.splits[split]]
    images = torch.from_numpy(np.concatenate([images for images, _ in batches]))
    labels = np.concatenate([labels for _, labels in batches])
    classes = _classes(folder / layout.names, layout)
    if not 0 <= labels.min() <= labels.max() < len(classes):
        raise _broken(folder, f"it has the label {labels.max()}")
    return ArraySource(images, labels, classes, f"{folder.name} {split}")


def _batch(
    path: Path, layout: Layout
) -> tuple[UInt8[np.ndarray, "images 3 32 32"], Indices]:
    if layout.label:
        batch = _unpickled(path)
        try:
            values = np.asarray(batch["data"], np.uint8).reshape(-1, 3, _SIDE, _SIDE)
            labels = np.asarray(batch[layout.label], np.int64)
        except (KeyError, ValueError, TypeError) as error:
            raise _broken(path, str(error)) from error
    else:
        length = layout.num_label_bytes + _NUM_VALUES
        rows = np.fromfile(path, np.uint8)
        if len(rows) % length:
            raise _broken(
                path, f"its {len(rows):,} bytes are not a multiple of {length:,}"
            )
        rows = rows.reshape(-1, length)
        values = rows[:, -_NUM_VALUES:].reshape(-1, 3, _SIDE, _SIDE)
        labels = rows[:, layout.num_label_bytes - 1].astype(np.int64)
    if len(values) != len(labels) or not len(values):
        raise _broken(path, f"{len(values)} images and {len(labels)} labels")
    return values, labels


def _classes(path: Path, layout: Layout) -> tuple[str, ...]:
    if not layout.label:
        return tuple(path.read_text().split())
    names = _unpickled(path).get(layout.names_key)
    if not isinstance(names, list) or not names:
        raise _broken(path, f"no {layout.names_key}")
    return tuple(_text(name) for name in names)


_ARRAYS = (
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("_codecs", "encode"),
)


class _Unpickler(pickle.Unpickler):
    """Loads arrays only: no code in the file can run."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _ARRAYS:
            # NumPy 2 renamed this module.
            return super().find_class(module.replace("numpy.core", "numpy._core"), name)
        raise pickle.UnpicklingError(f"it holds {module}.{name}")


def _unpickled(path: Path) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            batch = _Unpickler(file, encoding="bytes").load()
        return {_text(key): value for key, value in batch.items()}
    # Damaged pickles raise nearly anything.
    except Exception as error:
        raise _broken(path, str(error) or type(error).__name__) from error


def _text(name: bytes | str) -> str:
    return name.decode() if isinstance(name, bytes) else str(name)


def _broken(path: Path, reason: str) -> UserError:
    return UserError(
        f"{path} is not a CIFAR batch ({reason}): unpack the archive again."
    )
