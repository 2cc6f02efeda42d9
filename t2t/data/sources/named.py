"""Data sets by name: the built-in ones and those that users register."""

import gzip
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from t2t.data.sources.base import ArraySource, Openers, Source, Subset
from t2t.data.sources.splitting import held_out_indices
from t2t.data.sources.torchvision_sets import TORCHVISION_SETS, open_torchvision
from t2t.errors import UserError
from t2t.registry import Registry, call, check_methods

NUM_DIGITS_HELD_OUT = 360
Opener = TypeVar("Opener", bound=Callable[[str], Source])
_SPLITS = ("train", "val", "test", "all")


def open_digits(split: str) -> Source:
    """1,797 scanned digits of 8 × 8 pixels, 360 of them always held out."""
    pixels, labels = read_digits()
    grey = np.rint(pixels * (255 / 16)).astype(np.uint8)  # stored as 0 to 16
    images = torch.from_numpy(grey)[:, None]
    source = ArraySource(images, labels, [str(n) for n in range(10)], "digits")
    held = held_out_indices(labels, NUM_DIGITS_HELD_OUT, seed=0)
    if split == "val":
        return Subset(source, held)
    return Subset(source, np.setdiff1d(np.arange(len(source)), held))


def read_digits() -> tuple[np.ndarray, np.ndarray]:
    """The pixels and labels of scikit-learn's digits.

    Read from its file: importing scikit-learn takes longer than the first step.
    """
    spec = find_spec("sklearn")
    assert spec is not None
    package = Path(spec.origin or "").parent
    path = package / "datasets" / "data" / "digits.csv.gz"
    with gzip.open(path, "rt") as file:
        rows = np.loadtxt(file, delimiter=",")
    return rows[:, :-1].reshape(-1, 8, 8), rows[:, -1].astype(np.int64)


def torchvision_openers(name: str) -> Openers:
    """The splits of a torchvision set in the download cache."""
    known = TORCHVISION_SETS[name]
    return {split: partial(open_torchvision, name, split) for split in known.splits}


NAMED: Registry[Openers] = Registry(
    "data",
    {
        "digits": {split: partial(open_digits, split) for split in ("train", "val")},
        **{name: torchvision_openers(name) for name in TORCHVISION_SETS},
    },
)
NAMES = tuple(NAMED)
"""The names of the built-in data sets."""


def open_registered(name: str, opener: Callable[[str], Source], split: str) -> Source:
    """The source that a user's function returns, checked."""
    what = f"data={name!r}"
    source = call(what, opener, split)
    if not isinstance(source, Source):
        raise UserError(
            f"{what} returns a {type(source).__name__}, not a Source; derive its class "
            "from t2t.Source."
        )
    for field in ("classes", "labels"):
        if not hasattr(source, field):
            raise UserError(
                f"{what} returns a source without {field}; without labels, classes is "
                "() and labels are zeros."
            )
    check_methods(what, type(source), Source)
    check_classes(what, source.classes)
    labels, classes = np.asarray(source.labels), tuple(source.classes)
    num_classes = max(len(classes), 1)
    whole = labels.ndim == 1 and (not labels.size or labels.dtype.kind in "iu")
    if not whole or (
        labels.size and not 0 <= labels.min() <= labels.max() < num_classes
    ):
        raise UserError(
            f"{what} returns a source with the labels {np.unique(labels)[:9].tolist()}"
            f"; give every image a whole number from 0 to {num_classes - 1}, the index "
            "of its class in classes."
        )
    name = source.name(0) if labels.size else ""
    if not isinstance(name, str):
        raise UserError(
            f"{what} returns a source whose name(0) is {name!r}; return a string."
        )
    if source.labels is not labels or labels.dtype != np.int64:
        source.labels = labels.astype(np.int64)
    if source.classes != classes:
        source.classes = classes
    return source


def check_classes(what: str, classes: Any) -> None:
    """Raises an error unless every class has a name of its own."""
    if (
        isinstance(classes, str)
        or not all(isinstance(each, str) for each in classes)
        or len({*classes}) < len(classes)
    ):
        raise UserError(
            f"{what} returns a source with classes = {classes!r}; give each class a "
            "string of its own, such as ('cat', 'dog')."
        )


def register_source(
    name: str, *, splits: Sequence[str] = ("all",)
) -> Callable[[Opener], Opener]:
    """A decorator that makes `--data name` open a source of your own.

    The function takes the name of a split, one of `splits`, and returns its `Source`.
    The splits are train and val or test, or "all" for data to be split by the seed.
    """
    NAMED.check_name(name)
    if not splits or not set(splits) <= set(_SPLITS):
        raise UserError(
            f"The splits {tuple(splits)} of {name!r} should be of {', '.join(_SPLITS)}."
        )

    def add(opener: Opener) -> Opener:
        openers = {
            split: partial(open_registered, name, opener, split) for split in splits
        }
        NAMED.add(name, openers, opener)
        return opener

    return add
