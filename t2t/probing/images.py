"""The images that features are extracted from."""

import os
from dataclasses import dataclass, replace
from pathlib import Path

from t2t.data.label_config import NO_LABEL_CONFIG, LabelConfig
from t2t.data.sources import Source, Splits, Subset, open_source, open_splits
from t2t.data.sources.find_splits import find_splits
from t2t.data.sources.splitting import held_out_indices, strata_of
from t2t.errors import UserError, suggest
from t2t.models.trained import TrainedModel
from t2t.tasks.class_matching import match_classes, relabelled
from t2t.training.evaluation.evaluation_data import chosen_data, recipe_beside
from t2t.training.loaders import open_data
from t2t.training.recipe import Recipe

EVALUATION_SPLITS = ("val", "test")
"""Splits that a probe may be evaluated on."""


@dataclass(frozen=True)
class ImagesOfSplit:
    """Some images, and where they come from."""

    source: Source
    where: str
    split: str

    @property
    def notes(self) -> tuple[str, ...]:
        """Messages for the user, such as which files were skipped."""
        return self.source.notes


def find_images(
    trained: TrainedModel,
    data: str | os.PathLike[str] | None,
    split: str | None,
    preferred: str = "val",
    label_config: LabelConfig = NO_LABEL_CONFIG,
) -> ImagesOfSplit:
    """The images of a split, with or without labels.

    Without `split`, data in one piece is used whole, and of other data the preferred
    split. A run's own data is split as in its training.
    """
    where, recipe, seed, config = _choose_data(trained, data, label_config)
    openers = find_splits(where, labels=False, label_config=config).openers
    split = split or ("all" if "all" in openers and recipe is None else preferred)
    if recipe is not None and split in ("train", "val"):
        held = open_data(recipe)
        source = held.train if split == "train" else held.val
    elif split == "train":
        found = open_splits(where, seed=seed, labels=False, label_config=config)
        source = found.train
    else:
        source = open_source(where, split, seed=seed, labels=False, label_config=config)
    if not len(source):
        raise UserError(f"{where} has no images in its split {split}; name another.")
    return ImagesOfSplit(source, where, split)


def find_labelled(
    trained: TrainedModel,
    data: str | os.PathLike[str] | None,
    split: str | None,
    label_config: LabelConfig = NO_LABEL_CONFIG,
) -> tuple[ImagesOfSplit, ImagesOfSplit]:
    """The training images of a probe and those to evaluate it on.

    They never overlap: data without a validation set is split by the run's seed.
    """
    if split not in (None, *EVALUATION_SPLITS):
        raise UserError(
            f"A probe cannot be evaluated on the split {split!r}."
            f"{suggest(str(split), EVALUATION_SPLITS)}"
        )
    where, recipe, seed, config = _choose_data(trained, data, label_config)
    if recipe is None:
        splits: Splits = open_splits(where, seed=seed, label_config=config)
    else:  # a run without labels may be probed on its images all the same
        splits = open_data(replace(recipe, task="classify", task_args={}))
    train, evaluated_on = splits.train, splits.val
    if split == "test":
        evaluated_on = open_source(where, "test", seed=seed, label_config=config)
    if train.is_multilabel:
        raise UserError(
            f"{where} gives images several labels, and a probe scores one of each: use "
            "labels with one class for every image."
        )
    if len(train.classes) < 2:
        raise UserError(
            f"{where} has images of one class only ({train.classes[0]}), and a probe "
            "needs two or more: add a folder of images of another class."
        )
    if evaluated_on.classes != train.classes:
        numbers, _ = match_classes(evaluated_on.classes, train.classes, where)
        evaluated_on = relabelled(evaluated_on, numbers, train.classes)
    return (
        ImagesOfSplit(train, where, "train"),
        ImagesOfSplit(evaluated_on, where, split or "val"),
    )


def _choose_data(
    trained: TrainedModel,
    data: str | os.PathLike[str] | None,
    given: LabelConfig,
) -> tuple[str, Recipe | None, int, LabelConfig]:
    """The data, the recipe if it is the run's, the seed of its split, its labels."""
    chosen = chosen_data(trained, data, given)
    if data is None and not _can_open(chosen.where, chosen.label_config):
        raise UserError(
            f"{trained.path} was trained on {chosen.where}, which is not here: give "
            "--data."
        )
    recipe = chosen.recipe if chosen.is_own else None
    return chosen.where, recipe, chosen.seed, chosen.label_config


def _can_open(where: str, config: LabelConfig) -> bool:
    try:
        find_splits(where, labels=False, label_config=config)
    except UserError:
        return False
    return True


def weights_folder(path: str | os.PathLike[str]) -> Path | None:
    """The run folder of these weights, if they are a run's."""
    folder = Path(path).expanduser()
    folder = folder if folder.is_dir() else folder.parent
    return folder if recipe_beside(path) is not None else None


def some_of(source: Source, num: int | None, seed: int) -> Source:
    """A random subset of `num` images, each class in proportion and at least once.

    None, or more than there are, takes all.
    """
    if num is None or num >= len(source):
        return source
    drawn = held_out_indices(strata_of(source), num, seed, minimum=1)
    return Subset(source, drawn)
