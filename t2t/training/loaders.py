"""The images of a recipe, and its batches: to train on, and to validate by."""

from dataclasses import replace
from typing import Any

from t2t.data.batches import (
    Batches,
    EvaluationBatches,
    LoaderOptions,
    evaluation_batches,
    open_batches,
)
from t2t.data.crops import CenterCrop, RandomCrop
from t2t.data.decoding.damage import Damage
from t2t.data.sources import Source, Splits, holdout, open_splits
from t2t.data.sources.labels import folder_meant
from t2t.errors import UserError
from t2t.tasks import Task, task_class
from t2t.training.distributed import World
from t2t.training.recipe import Recipe


def open_data(recipe: Recipe) -> Splits:
    """The images of a recipe; some of the training set held out where it says so."""
    labels = task_class(recipe.task).needs_labels
    splits = open_splits(recipe.data, seed=recipe.seed, labels=labels)
    if labels and len(splits.train.classes) < 2:
        raise UserError(
            f"{recipe.data} has images of one class only ({splits.train.classes[0]}), "
            "and nothing to tell it from; add a folder of other images."
            f"{folder_meant(splits.train)}"
        )
    if recipe.holdout:
        kept, held = holdout(splits.train, recipe.holdout, recipe.seed)
        splits = replace(splits, train=kept, val=held)
    return splits


def training_batches(
    recipe: Recipe,
    source: Source,
    world: World,
    loader_options: LoaderOptions,
    damage: Damage | None = None,
    task: Task | None = None,
) -> Batches:
    """Batches in the order and by the crops that the recipe's seed draws.

    A task may ask for several crops of each image.
    """
    random_crop = RandomCrop(
        size=recipe.image_size,
        scale=recipe.crop.scale,
        ratio=recipe.crop.ratio,
        interpolation=recipe.crop.interpolation,
    )
    crop = random_crop if recipe.crop.kind == "random" else whole_image(recipe)
    return open_batches(
        source,
        batch_size=recipe.batch_size,
        crops=(crop,) if task is None else task.crops(crop),
        seed=recipe.seed,
        repeats=recipe.repeats,
        **shared(recipe, world, loader_options, damage),
    )


def validation_batches(
    recipe: Recipe,
    source: Source,
    world: World,
    loader_options: LoaderOptions,
    damage: Damage | None = None,
    micro_batch: int | None = None,
) -> EvaluationBatches:
    """All images once, in order; no more at once than a device computes."""
    most = recipe.batch_size
    if micro_batch is not None:
        most = min(most, micro_batch * world.size)
    return evaluation_batches(
        source,
        batch_size=min(most, len(source)),
        crop=whole_image(recipe),
        **shared(recipe, world, loader_options, damage),
    )


def whole_image(recipe: Recipe) -> CenterCrop:
    """The image at the recipe's size, with nothing drawn."""
    return CenterCrop(size=recipe.image_size, fraction=recipe.crop.evaluation_fraction)


def shared(
    recipe: Recipe, world: World, loader_options: LoaderOptions, damage: Damage | None
) -> dict[str, Any]:
    """What both kinds of batches are opened with."""
    return {
        "device": world.device,
        "rank": world.rank,
        "world_size": world.size,
        "channels": recipe.channels,
        "damage": damage,
        "loader_options": loader_options,
    }
