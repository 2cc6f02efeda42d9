"""Images that are Python objects: a torch Dataset, arrays, lists."""

import os
from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import torch
from torch import Tensor

from t2t.data.decoding.damage import DamagedImage, unread
from t2t.data.decoding.image_objects import image_data, kind_of
from t2t.data.image_files import read_whole
from t2t.data.sources.base import (
    ArraySource,
    FileSource,
    Indices,
    Source,
    Subset,
    no_labels,
)
from t2t.data.sources.labels import labels_and_classes
from t2t.errors import UserError

WHAT_TO_GIVE = (
    "give a path, a torch Dataset, a Hugging Face dataset, a tuple (images, labels), a "
    "data frame of paths and labels, or a pair (train, val) of these"
)
# A Dataset is made for one thread in each process: it may share one open file.
_ONE_AT_A_TIME = Lock()
_NUM_COMPARED = 5
"""Items whose labels are compared with the list of labels that a Dataset has."""


class ObjectSource(Source):
    """Images of any sizes from a sequence: images, or pairs of image and label."""

    def __init__(
        self,
        items: Any,
        labels: Indices,
        classes: tuple[str, ...],
        title: str,
        keys: tuple[Any, ...] = (),
    ) -> None:
        self.items, self.labels, self.classes = items, labels, classes
        self.title = title
        self.keys = keys
        """Where the image is in an item; empty if the item is the image."""

    def read(self, index: int) -> bytes | Tensor:
        name = self.name(index)
        try:
            with _ONE_AT_A_TIME:
                image = self.items[index]
                for key in self.keys:
                    image = image[key]
                if isinstance(image, str | os.PathLike):
                    return read_whole(os.path.expanduser(image))
                data = image_data(image, name)
                return torch.from_numpy(data) if isinstance(data, np.ndarray) else data
        except (DamagedImage, UserError):
            raise
        except Exception as error:  # of any kind: a Dataset is the user's own code
            raise unread(name, error) from error

    def name(self, index: int) -> str:
        return f"{self.title}[{index}]"


def array_source(images: Any, labels: Any, title: str) -> Source:
    """Images with labels (or None): an array, a tensor, or a list of images or paths.

    Arrays are images × height × width (× channels), tensors images × channels ×
    height × width.
    """
    numbers, classes = numbered(labels, title)
    if isinstance(images, np.ndarray | Tensor) and images.dtype != object:
        pixels = as_pixels(images, title)
        check_same_number(len(pixels), numbers, title)
        numbers = no_labels(len(pixels)) if numbers is None else numbers
        return ArraySource(pixels, numbers, classes, title)
    items = list(images)
    check_same_number(len(items), numbers, title)
    if not items:
        raise UserError(f"The {title} hold no images.")
    numbers = no_labels(len(items)) if numbers is None else numbers
    if all(isinstance(item, str | os.PathLike) for item in items):
        paths = [os.path.abspath(os.path.expanduser(item)) for item in items]
        check_exist(paths, title)
        return FileSource(Path(os.sep), paths, numbers, classes)
    source = ObjectSource(items, numbers, classes, title)
    check_first(items[0], title)
    return source


def as_pixels(images: Any, title: str) -> Tensor:
    """Arrays and tensors of uint8 as a tensor with the channels first."""
    is_uint8 = str(images.dtype).endswith("uint8")
    if not is_uint8:
        raise UserError(
            f"The images of the {title} are {kind_of(images)}: give uint8 values from "
            "0 to 255, as images are stored; they are normalised in training."
        )
    if not len(images) or images.ndim not in (3, 4):
        raise UserError(
            f"The images of the {title} are {kind_of(images)}: give images × height × "
            "width × channels as an array, or images × channels × height × width as a "
            "tensor."
        )
    if images.ndim == 3:
        return torch.as_tensor(images)[:, None]
    if isinstance(images, Tensor):
        pixels = images
    else:
        pixels = torch.from_numpy(np.ascontiguousarray(np.moveaxis(images, -1, 1)))
    if pixels.shape[1] not in (1, 3, 4):
        where = "last" if isinstance(images, np.ndarray) else "first after the images"
        raise UserError(
            f"The images of the {title} are {kind_of(images)}, so they have "
            f"{pixels.shape[1]} channels: give 1, 3 or 4, {where}."
        )
    return pixels


def numbered(labels: Any, title: str) -> tuple[Indices | None, tuple[str, ...]]:
    """Class numbers and class names, from numbers or names; None without labels."""
    if labels is None:
        return None, ()
    values = labels
    if isinstance(values, Tensor):
        values = values.detach().cpu().numpy()
    values = np.asarray(values)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1:
        raise UserError(
            f"The labels of the {title} are {kind_of(values)}: give one class number "
            "or name for each image."
        )
    return labels_and_classes(values.tolist(), None, f"the {title}")


def check_same_number(num_images: int, labels: Indices | None, title: str) -> None:
    """Raises an error unless there is one label for each image."""
    if labels is not None and len(labels) != num_images:
        raise UserError(
            f"The {title} have {num_images:,} images and {len(labels):,} labels: give "
            "one label for each image."
        )


def check_exist(paths: Sequence[str], title: str) -> None:
    """Raises an error if the first or last path, or one between, does not exist."""
    chosen = np.linspace(0, len(paths) - 1, min(len(paths), 1000)).astype(int)
    for number in chosen.tolist():
        if not os.path.isfile(paths[number]):
            raise UserError(
                f"The {title} name the image {paths[number]}, which does not exist: "
                "paths are relative to the current folder."
            )


def check_first(image: Any, title: str) -> None:
    """Raises an error if the first image of a set is not one."""
    dtype = str(getattr(image, "dtype", "")).removeprefix("torch.")
    if dtype.startswith(("float", "bfloat")):
        raise UserError(
            f"The first image of the {title} is a {kind_of(image)}: give Pillow images "
            "or uint8 pixels. Remove ToTensor, Normalize and the like from its "
            "transform; images are augmented and normalised in training."
        )
    if not isinstance(image, str | os.PathLike):
        image_data(image, f"The first image of the {title}")


def dataset_source(dataset: Any, title: str) -> Source:
    """The images of a map-style Dataset that returns (image, label) or an image."""
    if hasattr(dataset, "indices") and hasattr(dataset, "dataset"):
        whole = dataset_source(dataset.dataset, title)
        return Subset(whole, [int(index) for index in dataset.indices])
    check_map_style(dataset, title)
    names = getattr(dataset, "classes", None)
    first = item_of(dataset, 0, title)
    keys = keys_of(first, title)
    check_first(first[keys[0]] if keys else first, title)
    if not keys[1:]:
        classes: tuple[str, ...] = ()
        return ObjectSource(dataset, no_labels(len(dataset)), classes, title, keys)
    classes = tuple(map(str, names or ())) if is_names(names) else ()
    values = known_labels(dataset, keys[1], title)
    if values is None:
        values = [
            plain(item_of(dataset, index, title)[keys[1]])
            for index in range(len(dataset))
        ]
    labels, classes = labels_and_classes(values, classes or None, f"the {title}")
    if files := files_of(dataset):
        return FileSource(Path(os.sep), files, labels, classes)
    return ObjectSource(dataset, labels, classes, title, keys[:1])


def check_map_style(dataset: Any, title: str) -> None:
    """Raises an error for a Dataset that can only be iterated, or is empty."""
    if hasattr(dataset, "batch_sampler"):
        raise UserError(
            "data is a DataLoader, which makes batches of its own: give its images, "
            "data=loader.dataset."
        )
    if not hasattr(dataset, "__getitem__") or isinstance(
        dataset, torch.utils.data.IterableDataset
    ):
        raise UserError(
            f"data is a {type(dataset).__name__}, which can only be iterated: give a "
            "map-style Dataset with __len__ and __getitem__, or store its images with "
            "t2t pack."
        )
    try:
        num_images = len(dataset)
    except TypeError as error:
        raise UserError(
            f"The {title} has no length ({error}): give a map-style Dataset with "
            "__len__ and __getitem__."
        ) from error
    if not num_images:
        raise UserError(f"The {title} holds no images.")


def item_of(dataset: Any, index: int, title: str) -> Any:
    """An item of a Dataset; an error of the user's code in one sentence."""
    try:
        return dataset[index]
    except Exception as error:
        raise UserError(
            f"Item {index} of the {title} cannot be read "
            f"({type(error).__name__}: {error})."
        ) from error


def keys_of(item: Any, title: str) -> tuple[Any, ...]:
    """Where the image and the label are in an item; empty if the item is the image."""
    if isinstance(item, tuple | list):
        if len(item) >= 2:
            return 0, 1
        raise UserError(
            f"The first item of the {title} has {len(item)} values: return an image "
            "and its label."
        )
    if isinstance(item, dict):
        image = next(
            (key for key in ("image", "img", "pixel_values") if key in item), ""
        )
        label = next((key for key in ("label", "labels", "target") if key in item), "")
        if image and label:
            return image, label
        raise UserError(
            f"The first item of the {title} has the keys {', '.join(map(str, item))}: "
            "call them image and label."
        )
    return ()


def is_names(names: Any) -> bool:
    """Whether this lists the names of classes."""
    return isinstance(names, list | tuple) and all(
        isinstance(name, str | int) for name in names
    )


def known_labels(dataset: Any, key: Any, title: str) -> list[Any] | None:
    """The labels that a Dataset lists; None if it has no list that agrees with it."""
    for name in ("targets", "labels", "_labels"):
        listed = getattr(dataset, name, None)
        if listed is None or not hasattr(listed, "__len__"):
            continue
        values = [plain(value) for value in listed]
        if len(values) != len(dataset):
            continue
        chosen = np.linspace(0, len(values) - 1, min(_NUM_COMPARED, len(values)))
        if all(
            plain(item_of(dataset, index, title)[key]) == values[index]
            for index in chosen.astype(int).tolist()
        ):
            return values
    return None


def plain(value: Any) -> Any:
    """A label as a Python value."""
    num = value.numel() if isinstance(value, Tensor) else np.size(value)
    return value.item() if hasattr(value, "item") and num == 1 else value


def files_of(dataset: Any) -> list[str]:
    """The files of an ImageFolder without transforms, which are read as files."""
    samples = getattr(dataset, "samples", None)
    transforms = ("transform", "target_transform", "transforms")
    is_plain = all(getattr(dataset, name, None) is None for name in transforms)
    kinds = {
        each.__name__
        for each in type(dataset).__mro__
        if "torchvision" in each.__module__
    }
    is_folder = (
        type(dataset).__module__.startswith("torchvision.") and "DatasetFolder" in kinds
    )
    if not (samples and is_plain and is_folder):
        return []
    return [os.path.abspath(path) for path, _ in samples]
