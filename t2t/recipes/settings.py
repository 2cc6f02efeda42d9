"""Applies settings, such as those of a command line, to a recipe."""

import statistics
from contextlib import suppress

from t2t.config import override, set_value
from t2t.errors import UserError
from t2t.models.without_weights import without_weights
from t2t.models.zoo import CONFIGS
from t2t.recipes.default import with_model
from t2t.training.check_names import check_names
from t2t.training.initial_state import build_model
from t2t.training.recipe import SCHEDULE_EPOCHS, Recipe


def apply_settings(
    recipe: Recipe, epochs: int | None, settings: tuple[str, ...]
) -> Recipe:
    """The recipe with other epochs and fields, and what depends on them, checked."""
    recipe = with_settings(recipe, epochs, settings)
    check_names(recipe)
    if settings:
        check_model(recipe)
    return recipe


def with_settings(
    recipe: Recipe, epochs: int | None, settings: tuple[str, ...]
) -> Recipe:
    """The recipe with other epochs and fields, and what depends on them."""
    adapted: list[str] = []
    model = set_value("model", settings)
    if model not in (None, recipe.model) and model not in CONFIGS:
        recipe = with_model(recipe, model)
    if epochs is not None:
        if epochs < 1:
            raise UserError(f"--epochs {epochs} is too small: give 1 or more.")
    elif (text := set_value("epochs", settings) or "").isdecimal():
        epochs = int(text)
    if epochs is not None:
        adapted += schedule_for(recipe, epochs, settings)
    channels = set_value("channels", settings)
    if channels is not None and channels.isdecimal():
        adapted += normalisation_for(recipe, int(channels))
    return override(recipe, [*adapted, *settings])


def check_model(recipe: Recipe) -> None:
    """Raises an error if the model cannot be built, before data is opened."""
    with without_weights():
        build_model(recipe, num_classes=1)


def normalisation_for(recipe: Recipe, channels: int) -> list[str]:
    """Settings of mean and std for another number of channels: the average."""
    if channels == recipe.channels:
        return []
    return [
        f"augmentation.{name}={[round(statistics.fmean(values), 4)] * channels}"
        for name, values in (
            ("mean", recipe.augmentation.mean),
            ("std", recipe.augmentation.std),
        )
    ]


def schedule_for(recipe: Recipe, epochs: int, settings: tuple[str, ...]) -> list[str]:
    """Settings for another number of epochs; scales warm-up and floor to fit."""
    given: dict[str, float] = {}
    for name in SCHEDULE_EPOCHS:
        text = set_value(f"schedule.{name}", settings)
        if text is not None:
            with suppress(ValueError):  # checked later with all fields
                given[name] = float(text)
    changes = recipe.schedule_for(epochs, given)
    scaled = [f"schedule.{name}={value}" for name, value in changes.items()]
    # A warm-up of less than an epoch needs a learning rate per step.
    if changes and recipe.schedule.update_every == "epoch":
        scaled.append("schedule.update_every=step")
    return [f"epochs={epochs}", *scaled]


def schedule_notes(
    before: Recipe, after: Recipe, settings: tuple[str, ...]
) -> list[str]:
    """A sentence on warm-up and floor epochs that were scaled with the epochs."""
    names = {"warmup_epochs": "warm-up", "floor_epochs": "floor"}
    changes = [
        f"{what} epochs {getattr(before.schedule, name):g} → "
        f"{getattr(after.schedule, name):.3g}"
        for name, what in names.items()
        if set_value(f"schedule.{name}", settings) is None
        and getattr(before.schedule, name) != getattr(after.schedule, name)
    ]
    if not changes:
        return []
    if before.schedule.update_every != after.schedule.update_every:
        changes.append(f"learning rate updated every {after.schedule.update_every}")
    return [
        f"The schedule was scaled with the epochs ({before.epochs} → {after.epochs}): "
        f"{', '.join(changes)}."
    ]
