"""Data sets by name: the built-in ones and those that users register."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch

from t2t.data.sources.base import ArraySource, Openers, Source, Subset
from t2t.data.sources.splitting import held_out_indices
from t2t.data.sources.torchvision_sets import TORCHVISION_SETS, open_torchvision
from t2t.errors import UserError

NUM_DIGITS_HELD_OUT = 360
_SPLITS = ("train", "val", "test", "all")


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


def torchvision_openers(name: str) -> Openers:
    """The splits of a torchvision set in the download cache."""
    known = TORCHVISION_SETS[name]
    return {split: partial(open_torchvision, name, split) for split in known.splits}


NAMED: dict[str, Openers] = {
    "digits": {split: partial(open_digits, split) for split in ("train", "val")},
    **{name: torchvision_openers(name) for name in TORCHVISION_SETS},
}
NAMES = tuple(NAMED)
"""The names of the built-in data sets."""


def register_source(
    name: str, opener: Callable[[str], Source], splits: Sequence[str] = ("all",)
) -> None:
    """Makes `--data name` open a source of your own.

    `opener(split)` returns the `Source` of a split, one of `splits`: train and val or
    test, or "all" for data that is to be split by the seed.
    """
    if name in NAMES:
        raise UserError(f"{name!r} is already a data set: choose another name.")
    if not splits or not set(splits) <= set(_SPLITS):
        raise UserError(
            f"The splits {tuple(splits)} of {name!r} should be of {', '.join(_SPLITS)}."
        )
    NAMED[name] = {split: partial(opener, split) for split in splits}
