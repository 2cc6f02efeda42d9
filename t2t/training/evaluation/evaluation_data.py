"""The images that a trained model is evaluated on."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from t2t.config import from_json
from t2t.data.label_config import NO_LABEL_CONFIG, LabelConfig, differs_from_default
from t2t.data.sources import Source, Subset, open_source
from t2t.data.sources.find_splits import find_splits
from t2t.errors import UserError
from t2t.models.checkpoint_io.resolve import FILE_NAME
from t2t.models.trained import TrainedModel
from t2t.training.loaders import open_data
from t2t.training.recipe import Recipe
from t2t.training.run_files import BEST, RECIPE
from t2t.training.saved_run import read_recipe, same_data


@dataclass(frozen=True)
class EvaluationData:
    """The images to evaluate on."""

    source: Source
    where: str
    split: str
    notes: tuple[str, ...] = ()


class ChosenData(NamedTuple):
    """The data to evaluate on, before it is opened."""

    where: str
    is_own: bool
    """Whether it is what the model was trained on, with the same labels."""
    recipe: Recipe | None
    """The recipe of the run, if the weights are in its folder."""
    seed: int
    """The seed of the run's split."""
    label_config: LabelConfig


def chosen_data(
    trained: TrainedModel, data: str | os.PathLike[str] | None, given: LabelConfig
) -> ChosenData:
    """The named data, or the run's; with the run's labels unless some are given."""
    recipe = recipe_beside(trained.path)
    own = trained.data if recipe is None else recipe.data
    seed = trained.seed if recipe is None else recipe.seed
    where = own if data is None else os.fspath(data)
    if where is None:
        raise UserError(f"{trained.path} does not name its training data: give --data.")
    is_own = own is not None and same_data(where, own)
    label_config = given
    if is_own:
        own_labels = labels_of(trained, recipe)
        label_config = given if differs_from_default(given) else own_labels
        is_own = label_config == own_labels
    return ChosenData(where, is_own, recipe, seed, label_config)


def find_data(
    trained: TrainedModel,
    data: str | Path | None,
    split: str | None,
    label_config: LabelConfig = NO_LABEL_CONFIG,
) -> EvaluationData:
    """The named images, or the validation images of the run.

    Data without splits is split as in training if it is the run's own; other data
    without splits is used completely.
    """
    where, is_own, recipe, seed, label_config = chosen_data(trained, data, label_config)
    try:
        splits = find_splits(where, label_config=label_config).openers
    except UserError as error:
        if data is not None:
            raise
        raise UserError(
            f"{error} {trained.path} was trained on it: give --data."
        ) from error
    if split is None and "all" in splits and not is_own:
        note = f"{where} has no splits, so all of it is used; --split val takes a "
        return EvaluationData(splits["all"](), where, "all", (note + "tenth.",))
    split = split or "val"
    divides = recipe is not None and (recipe.holdout > 0 or recipe.fold is not None)
    if recipe is not None and divides and is_own and split in ("train", "val"):
        held = open_data(recipe)
        source = held.train if split == "train" else held.val
    else:
        source = open_source(where, split, seed=seed, label_config=label_config)
    notes: tuple[str, ...] = ()
    if is_own and split == "val":
        notes = (*split_changes(source, trained, where), *choice_note(trained, recipe))
    return EvaluationData(source, where, split, notes)


def choice_note(trained: TrainedModel, recipe: Recipe | None) -> tuple[str, ...]:
    """A note if a run's weights were chosen by the images that they are scored on."""
    is_best = Path(trained.path).name == BEST
    if not (is_best or (recipe is not None and recipe.keep == "best")):
        return ()
    return (
        "These weights are those of the run's best evaluation on these images, so "
        "their score here is too optimistic; other images say more.",
    )


def split_changes(source: Source, trained: TrainedModel, where: str) -> tuple[str, ...]:
    """A note if other images are held out than in training."""
    known = trained.evaluated_on
    if not isinstance(source, Subset) or known in (None, source.fingerprint()):
        return ()
    return (
        f"{where} has changed since training, and so has its split: the model may have "
        "been trained on some of the images.",
    )


def labels_of(trained: TrainedModel, recipe: Recipe | None) -> LabelConfig:
    """Where the labels of a model's training data are."""
    if recipe is not None:
        return recipe.labels
    return from_json(LabelConfig, trained.labels)


def recipe_beside(path: str | os.PathLike[str]) -> Recipe | None:
    """The recipe of a run folder, given the folder or the model in it."""
    folder = Path(path).expanduser()
    folder = folder.parent if folder.name in (FILE_NAME, BEST) else folder
    return read_recipe(folder) if (folder / RECIPE).is_file() else None
