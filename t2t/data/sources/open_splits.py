"""Opens data by one argument: a name, a path, a pattern or a URL."""

import os
from dataclasses import replace
from pathlib import Path

from t2t.data.image_files import permitted
from t2t.data.label_config import NO_LABEL_CONFIG, LabelConfig
from t2t.data.sources.base import Source, Splits, no_labels
from t2t.data.sources.filenames import SPLIT_NAMES
from t2t.data.sources.find_splits import UnopenedSplits, find_splits
from t2t.data.sources.folder import open_folder
from t2t.data.sources.labels import (
    check_labelled,
    check_no_empty_class,
    check_same_classes,
    drop_unequal_labels,
    share_label_sets,
)
from t2t.data.sources.splitting import split_by_seed
from t2t.errors import UserError, suggest


@permitted()
def open_splits(
    spec: str | Path,
    *,
    seed: int = 0,
    val_fraction: float = 0.1,
    labels: bool = True,
    label_config: LabelConfig = NO_LABEL_CONFIG,
    unlisted: bool = False,
) -> Splits:
    """The training and validation sets of a name, a path, a pattern or a URL.

    Data without a validation set is split by the seed, stratified by class. Without
    `labels`, images need no labels: any folder will do. Classes are then kept where
    every image has one and both sets have the same, so that labels can still score.
    The `label_config` says where labels are that are not found by themselves. With
    `unlisted`, images of a folder count although its table of labels leaves them out.
    """
    found = find_splits(spec, labels, label_config)
    if unlisted:
        found = with_unlisted(spec, found)
    return splits_of(found, seed=seed, val_fraction=val_fraction, labels=labels)


def splits_of(
    found: UnopenedSplits,
    *,
    seed: int = 0,
    val_fraction: float = 0.1,
    labels: bool = True,
) -> Splits:
    """The training and validation sets of what opens each split."""
    openers = found.openers
    if "train" not in openers and "all" not in openers:
        raise UserError(
            f"{found.title} has only {' and '.join(openers)} images and nothing to "
            "train on: add a train split."
        )
    whole = openers["train" if "train" in openers else "all"]()
    whole.notes = (*found.notes, *whole.notes)
    if labels:
        check_labelled(whole, found.title)
        check_no_empty_class(whole, found.title)
    evaluated_on = next((split for split in ("val", "test") if split in openers), None)
    if evaluated_on is None:
        train, val = split_by_seed(
            whole, val_fraction, seed, found.title, labels=labels
        )
        how = f"{len(val):,} of {len(whole):,} held out by seed {seed}"
    else:
        train, val = whole, openers[evaluated_on]()
        if labels:
            check_same_classes(train, val, found.title)
        else:
            drop_unequal_labels(train, val)
        share_label_sets(train, val)
        how = f"evaluated on its {evaluated_on} split"
    classes = f"{len(train.classes)} classes" if train.is_labelled else "no labels"
    classes += ", several labels per image" * train.is_multilabel
    description = (
        f"{found.title}: {len(train):,} training images, {len(val):,} validation "
        f"images ({how}), {classes}"
    )
    return Splits(train, val, description)


def with_unlisted(spec: str | Path, found: UnopenedSplits) -> UnopenedSplits:
    """All images of a folder, without labels, if its table does not list them all.

    A table with splits stays as it is: it says which images are not to be trained on.
    """
    path = Path(os.path.expanduser(spec))
    if not found.label_config.files or [*found.openers] != ["all"] or not path.is_dir():
        return found
    num_listed = len(found.openers["all"]())
    folder = open_folder(path, labels=False)
    if len(folder) <= num_listed:
        return found
    folder.classes, folder.labels = (), no_labels(len(folder))
    note = (
        f"{' and '.join(found.label_config.files)} lists {num_listed:,} of the "
        f"{len(folder):,} images of {found.title}: all of them are used, without "
        "labels."
    )
    return replace(found, openers={"all": lambda: folder}, notes=(note,))


@permitted()
def open_source(
    spec: str | Path,
    split: str = "val",
    *,
    seed: int = 0,
    val_fraction: float = 0.1,
    labels: bool = True,
    label_config: LabelConfig = NO_LABEL_CONFIG,
) -> Source:
    """One split: train or val as `open_splits` gives them, test, or all.

    "all" is for data that is not split.
    """
    found = find_splits(spec, labels, label_config)
    openers = found.openers
    allowed = ["train", "val", *(name for name in ("test", "all") if name in openers)]
    names = {name: split for split, names in SPLIT_NAMES.items() for name in names}
    wanted = names.get(split, split)
    if wanted not in allowed:
        raise UserError(
            f"{found.title} has no split {split!r}.{suggest(split, allowed)}"
        )
    if wanted == "val" and "val" not in openers and "test" in openers:
        wanted = "test"
    if wanted in openers:
        source = openers[wanted]()
        source.notes = (*found.notes, *source.notes)
        if labels:
            check_labelled(source, found.title)
        return source
    splits = splits_of(found, seed=seed, val_fraction=val_fraction, labels=labels)
    return splits.train if wanted == "train" else splits.val
