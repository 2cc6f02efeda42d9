"""The images of a recipe, and batches for training and validation."""

from dataclasses import replace
from typing import Any

import torch.distributed as dist

from t2t.data.batches import (
    Batches,
    EvaluationBatches,
    LoaderOptions,
    evaluation_batches,
    open_batches,
    start_reading,
)
from t2t.data.class_balance import balance_factors, class_counts
from t2t.data.crops import CenterCrop, RandomCrop
from t2t.data.decoding.damage import Damage
from t2t.data.resident import DecodingProgress
from t2t.data.shared_images import Peers
from t2t.data.sources import Source, Splits, holdout, open_splits
from t2t.data.sources.labels import folder_meant
from t2t.data.sources.splitting import fold_of
from t2t.errors import UserError
from t2t.tasks import Task, task_class
from t2t.tasks.base import Crops
from t2t.tasks.checks import checked_crops
from t2t.training.distributed import World
from t2t.training.recipe import Recipe


def open_data(recipe: Recipe) -> Splits:
    """The images of a recipe, as its `holdout` or `fold` divides them."""
    task = task_class(recipe.task)
    labels, config = task.needs_labels, recipe.labels
    if task.takes_label_sets and config.several is None:
        config = replace(config, several=True)
    splits = open_splits(
        recipe.data,
        seed=recipe.seed,
        labels=labels,
        label_config=config,
        unlisted=not labels,
    )
    if splits.train.is_multilabel and not task.takes_label_sets:
        if labels:
            raise UserError(
                f"{recipe.data} gives images several labels, and task={recipe.task} "
                "learns one of each: add --set task=multilabel, or use other labels."
            )
        splits.train.drop_labels()
        splits.val.drop_labels()
    if labels and len(splits.train.classes) < 2:
        raise UserError(
            f"{recipe.data} has images of one class only ({splits.train.classes[0]}); "
            "add a folder of images of another class."
            f"{folder_meant(splits.train)}"
        )
    if recipe.holdout:
        kept, held = holdout(splits.train, recipe.holdout, recipe.seed)
        splits = replace(splits, train=kept, val=held)
    if recipe.fold is not None:
        splits = fold_of(splits, *recipe.fold, recipe.seed)
    return splits


def training_batches(
    recipe: Recipe,
    source: Source,
    world: World,
    loader_options: LoaderOptions,
    damage: Damage | None = None,
    task: Task | None = None,
    progress: DecodingProgress | None = None,
) -> Batches:
    """Training batches, shuffled and cropped by the recipe's seed.

    A task may ask for several crops of each image.
    """
    is_sampled = recipe.balance == "sampling"
    return open_batches(
        source,
        batch_size=recipe.batch_size,
        crops=training_crops(recipe, task),
        seed=recipe.seed,
        repeats=recipe.repeats,
        balance_power=recipe.own_balance_power if is_sampled else 0.0,
        progress=progress,
        **common_options(recipe, world, loader_options, damage),
    )


def class_weights(recipe: Recipe, source: Source) -> tuple[float, ...]:
    """The weights of the classes in the loss; empty if all are 1."""
    if recipe.balance != "weights":
        return ()
    factors = balance_factors(class_counts(source), recipe.own_balance_power)
    return tuple(factors.tolist())


def validation_batches(
    recipe: Recipe,
    source: Source,
    world: World,
    loader_options: LoaderOptions,
    damage: Damage | None = None,
    micro_batch: int | None = None,
    progress: DecodingProgress | None = None,
) -> EvaluationBatches:
    """All images once, in order, in batches of at most a micro-batch per process."""
    batch_size = recipe.batch_size
    if micro_batch is not None:
        batch_size = min(batch_size, micro_batch * world.size)
    return evaluation_batches(
        source,
        batch_size=min(batch_size, len(source)),
        crop=center_crop(recipe),
        progress=progress,
        **common_options(recipe, world, loader_options, damage),
    )


def start_reading_images(
    recipe: Recipe,
    splits: Splits,
    world: World,
    loader_options: LoaderOptions,
    damage: Damage,
) -> None:
    """Starts the processes that decode the images, where that takes long."""
    if world.is_distributed or task_class(recipe.task).crops is not Task.crops:
        return  # the crops are known once the task is built
    common: dict[str, Any] = {
        "device": world.device,
        "channels": recipe.channels,
        "damage": damage,
        "loader_options": loader_options,
    }
    start_reading(splits.train, crops=training_crops(recipe, None), **common)
    start_reading(splits.val, crops=(center_crop(recipe),), **common)


def training_crops(recipe: Recipe, task: Task | None) -> Crops:
    """The crops of an image that a task trains on."""
    random_crop = RandomCrop(
        size=recipe.image_size,
        scale=recipe.crop.scale,
        ratio=recipe.crop.ratio,
        interpolation=recipe.crop.interpolation,
    )
    crop = random_crop if recipe.crop.kind == "random" else center_crop(recipe)
    return (crop,) if task is None else checked_crops(task, task.crops(crop))


def center_crop(recipe: Recipe) -> CenterCrop:
    """The crop of evaluation, which is not random."""
    return CenterCrop(size=recipe.image_size, fraction=recipe.crop.evaluation_fraction)


def common_options(
    recipe: Recipe, world: World, loader_options: LoaderOptions, damage: Damage | None
) -> dict[str, Any]:
    """The options that training and validation share."""
    return {
        "device": world.device,
        "rank": world.rank,
        "world_size": world.size,
        "channels": recipe.channels,
        "damage": damage,
        "loader_options": loader_options,
        "peers": peers_of(world),
    }


def peers_of(world: World) -> Peers | None:
    """The processes that decode images together; None without a process group."""
    if world.control is None:
        return None

    def gather(value: Any) -> list[Any]:
        values: list[Any] = [None] * world.size
        dist.all_gather_object(values, value, group=world.control)
        return values

    return Peers(world.rank, world.local_rank, world.local_size, gather)
