"""Data that is passed as Python objects: kept under a name, like other data."""

import os
from collections.abc import Mapping
from copy import copy
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from torch import Tensor

from t2t.data.sources.base import Openers, Source, digest
from t2t.data.sources.data_frames import frame_sources, is_frame
from t2t.data.sources.filenames import SPLIT_NAMES
from t2t.data.sources.hugging_face import (
    HuggingFaceSource,
    hugging_face_source,
    is_hugging_face,
)
from t2t.data.sources.objects import WHAT_TO_GIVE, array_source, dataset_source
from t2t.errors import UserError

Data: TypeAlias = str | os.PathLike[str] | Any
"""A path or a name, or images and labels as Python objects."""
PREFIX = "memory:"
_NUM_KEPT = 4
_NUM_HASHED = 16
_KEPT: dict[str, dict[str, Source]] = {}
"""The splits of the data last passed, by name."""


def data_name(data: Data | None) -> str | None:
    """The path or name of data; objects get a name, by which this process knows them.

    The name has a hash of labels, classes and images, so that a run only resumes with
    the data it started with. The last four sets are kept.
    """
    if data is None:
        return None
    if isinstance(data, str | os.PathLike):
        return os.fspath(data)
    kind = kind_of_data(data)
    splits = open_objects(data, kind)
    name = f"{PREFIX}{kind}-{fingerprint(splits)[:12]}"
    _KEPT.pop(name, None)
    _KEPT[name] = splits
    while len(_KEPT) > _NUM_KEPT:
        del _KEPT[next(iter(_KEPT))]
    return name


def is_in_memory(text: str) -> bool:
    """Whether this is the name of data that was passed as an object."""
    # fsspec has a file system in memory, whose URLs begin alike.
    return text.startswith(PREFIX) and not text.startswith(f"{PREFIX}//")


def in_memory_openers(name: str) -> Openers:
    """The splits of data that was passed in this process."""
    if name not in _KEPT:
        raise UserError(
            f"{name} is data that was passed as a Python object, which this process "
            "does not have: pass the same object again, as data=…."
        )
    # A copy: labels may be dropped and notes added.
    return {split: partial(copy, source) for split, source in _KEPT[name].items()}


def is_multilabel(name: str) -> bool:
    """Whether images of this data may have several labels."""
    return any(source.is_multilabel for source in _KEPT.get(name, {}).values())


def kind_of_data(data: object) -> str:
    """A word for the data, which names it in messages: its class, or arrays."""
    if is_pair(data):
        return kind_of_data(data[0])  # type: ignore[index]
    if isinstance(data, Mapping) and data:
        return kind_of_data(next(iter(data.values())))
    if isinstance(data, np.ndarray | Tensor) or is_labelled_images(data):
        return "arrays"
    return type(data).__name__


def open_objects(data: object, kind: str) -> dict[str, Source]:
    """The splits of data by name, or the whole as "all"."""
    if isinstance(data, Mapping):
        parts = dict(data)
    elif is_pair(data):
        parts = dict(zip(("train", "val"), data, strict=True))  # type: ignore[call-overload]
    elif is_frame(data):
        return frame_sources(data, kind)
    else:
        return {"all": open_object(data, kind)}
    known = {name: split for split, names in SPLIT_NAMES.items() for name in names}
    if not parts or not {*parts} <= {*known}:
        raise UserError(
            f"data has the parts {', '.join(map(str, parts)) or '(none)'}: name them "
            "train and val, as in data={'train': …, 'val': …}."
        )
    splits = {known[name]: open_object(part, kind) for name, part in parts.items()}
    return with_classes_of_train(splits)


def open_object(data: object, kind: str) -> Source:
    """One set of images."""
    if isinstance(data, Source):
        return data
    if data is None:
        raise UserError(
            "A part of data is None: give images without labels alone, as data=images."
        )
    if is_frame(data):
        splits = frame_sources(data, kind)
        if set(splits) != {"all"}:
            raise UserError(
                "A data frame with a column of splits is all of the data: give "
                "data=frame."
            )
        return splits["all"]
    if is_hugging_face(data):
        return hugging_face_source(data, kind)
    if is_labelled_images(data):
        return array_source(*data, title=kind)  # type: ignore[misc]
    if isinstance(data, np.ndarray | Tensor):
        return array_source(data, None, kind)
    if hasattr(data, "__getitem__") or hasattr(data, "__iter__"):
        return dataset_source(data, kind)
    raise UserError(f"data is a {type(data).__name__}: {WHAT_TO_GIVE}.")


def with_classes_of_train(splits: dict[str, Source]) -> dict[str, Source]:
    """The splits with the class numbers of the training set, where it has all names."""
    train = splits.get("train")
    for split, source in splits.items():
        if train is None or source.classes == train.classes:
            continue
        if not source.classes or not {*source.classes} <= {*train.classes}:
            continue  # refused, or left without labels, when it is used
        numbers = [train.classes.index(name) for name in source.classes]
        changed = splits[split] = copy(source)
        changed.labels = np.array(numbers, np.int64)[source.labels]
        changed.classes = train.classes
    return splits


def is_pair(data: object) -> bool:
    """Whether this is (train, val), and not (images, labels)."""
    return isinstance(data, tuple) and len(data) == 2 and not is_labelled_images(data)


def is_labelled_images(data: object) -> bool:
    """Whether this is (images, labels): the second is a plain list of values."""
    if not isinstance(data, tuple) or len(data) != 2:
        return False
    labels = data[1]
    if isinstance(labels, np.ndarray | Tensor):
        return labels.ndim < 3
    if type(labels).__name__ == "Series":
        return True
    return (
        isinstance(labels, list | tuple | range)
        and len(labels) > 0
        and isinstance(labels[0], int | float | str | np.generic)
    )


def fingerprint(splits: Mapping[str, Source]) -> str:
    """A hash of splits: names, classes, labels, and some images where they are stored.

    A Dataset may augment its images, so that they differ each time they are read.
    """
    parts: list[bytes] = []
    for split, source in sorted(splits.items()):
        parts += [split.encode(), source.fingerprint().encode()]
        parts += [name.encode() for name in source.classes]
        if isinstance(source, HuggingFaceSource) or source.is_in_memory:
            chosen = np.linspace(0, len(source) - 1, min(len(source), _NUM_HASHED))
            for index in chosen.astype(int).tolist():
                image = source.read(index)
                parts.append(
                    image if isinstance(image, bytes) else image.numpy().tobytes()
                )
    return digest(*parts)
