"""The images of a recipe, and its batches: to train on, and to validate by."""

from dataclasses import replace
from typing import Any

from t2t.data.batches import (
    Batches,
    EvaluationBatches,
    Feeding,
    evaluation_batches,
    open_batches,
)
from t2t.data.crops import CenterCrop, RandomCrop
from t2t.data.decoding.damage import Damage
from t2t.data.sources import Source, Splits, hold_out, open_splits
from t2t.data.sources.labels import folder_meant
from t2t.errors import UserError
from t2t.training.parallel import Processes
from t2t.training.recipe import Recipe


def open_data(recipe: Recipe) -> Splits:
    """The images of a recipe; some of the training set held out where it says so."""
    splits = open_splits(recipe.data, seed=recipe.seed)
    if recipe.objective == "classify" and len(splits.train.classes) < 2:
        raise UserError(
            f"{recipe.data} has images of one class only ({splits.train.classes[0]}), "
            "and nothing to tell it from; add a folder of other images."
            f"{folder_meant(splits.train)}"
        )
    if recipe.hold_out:
        kept, held = hold_out(splits.train, recipe.hold_out, recipe.seed)
        splits = replace(splits, train=kept, val=held)
    return splits


def training_batches(
    recipe: Recipe,
    source: Source,
    team: Processes,
    feeding: Feeding,
    damage: Damage | None = None,
) -> Batches:
    """Batches in the order and by the crops that the recipe's seed draws."""
    crop = RandomCrop(
        size=recipe.image_size,
        scale=recipe.crop.scale,
        ratio=recipe.crop.ratio,
        interpolation=recipe.crop.interpolation,
    )
    return open_batches(
        source,
        batch_size=recipe.batch_size,
        crop=crop if recipe.crop.kind == "random" else whole_image(recipe),
        seed=recipe.seed,
        repeats=recipe.repeats,
        **shared(recipe, team, feeding, damage),
    )


def validation_batches(
    recipe: Recipe,
    source: Source,
    team: Processes,
    feeding: Feeding,
    damage: Damage | None = None,
    micro_batch: int | None = None,
) -> EvaluationBatches:
    """All images once, in order; no more at once than a device computes."""
    most = recipe.batch_size
    if micro_batch is not None:
        most = min(most, micro_batch * team.world_size)
    return evaluation_batches(
        source,
        batch_size=min(most, len(source)),
        crop=whole_image(recipe),
        **shared(recipe, team, feeding, damage),
    )


def whole_image(recipe: Recipe) -> CenterCrop:
    """The image at the recipe's size, with nothing drawn."""
    return CenterCrop(size=recipe.image_size, fraction=recipe.crop.evaluation_fraction)


def shared(
    recipe: Recipe, team: Processes, feeding: Feeding, damage: Damage | None
) -> dict[str, Any]:
    """What both kinds of batches are opened with."""
    return {
        "device": team.device,
        "rank": team.rank,
        "world_size": team.world_size,
        "channels": recipe.channels,
        "damage": damage,
        "feeding": feeding,
    }
