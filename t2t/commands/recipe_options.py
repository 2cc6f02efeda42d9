"""A recipe with what the options of a command line change in it."""

import statistics
from contextlib import suppress
from typing import TYPE_CHECKING

from t2t.commands.options import at_least, set_value
from t2t.config import override

if TYPE_CHECKING:
    from t2t.training.recipe import Recipe


def apply_settings(
    recipe: "Recipe", epochs: int | None, settings: tuple[str, ...]
) -> "Recipe":
    """A recipe with other epochs and fields, and what must follow them."""
    from t2t.models.zoo import OURS
    from t2t.recipes.own import with_model

    words: list[str] = []
    model = set_value("model", settings)
    if model not in (None, recipe.model) and model not in OURS:
        recipe = with_model(recipe, model)
    if epochs is not None:
        at_least(1, "--epochs", epochs)
    elif (text := set_value("epochs", settings) or "").isdecimal():
        epochs = int(text)
    if epochs is not None:
        words += shorter_or_longer(recipe, epochs, settings)
    channels = set_value("channels", settings)
    if channels is not None and channels.isdecimal():
        words += for_channels(recipe, int(channels))
    recipe = override(recipe, [*words, *settings])
    if settings:
        check_model(recipe)
    return recipe


def check_model(recipe: "Recipe") -> None:
    """Refuses a model that cannot be, before folders are compared and data opened."""
    import torch

    from t2t.training.state import build_model

    with torch.device("meta"):
        build_model(recipe, num_classes=1)


def for_channels(recipe: "Recipe", channels: int) -> list[str]:
    """The recipe's mean and deviation, averaged for another number of channels."""
    if channels == recipe.channels:
        return []
    return [
        f"augmentation.{name}={[round(statistics.fmean(values), 4)] * channels}"
        for name, values in (
            ("mean", recipe.augmentation.mean),
            ("std", recipe.augmentation.std),
        )
    ]


def shorter_or_longer(
    recipe: "Recipe", epochs: int, settings: tuple[str, ...]
) -> list[str]:
    """Another number of epochs, with warm-up and floor in proportion if they must."""
    from t2t.training.recipe import WITHIN_EPOCHS

    given: dict[str, float] = {}
    for name in WITHIN_EPOCHS:
        text = set_value(f"schedule.{name}", settings)
        if text is not None:
            with suppress(ValueError):  # checked later with all fields
                given[name] = float(text)
    changes = recipe.schedule_for(epochs, given)
    words = [f"schedule.{name}={value}" for name, value in changes.items()]
    # A warm-up of less than an epoch needs a learning rate per step.
    if changes and recipe.schedule.update_every == "epoch":
        words.append("schedule.update_every=step")
    return [f"epochs={epochs}", *words]


def schedule_notes(
    before: "Recipe", after: "Recipe", settings: tuple[str, ...]
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
