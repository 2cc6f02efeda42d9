"""The epochs, and the scale of the default recipe, that fit into a time."""

import math
import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from t2t.analysis.meter import macs_by_module
from t2t.errors import UserError
from t2t.recipes.default import Scale
from t2t.training.forecast.advice import rounded
from t2t.training.forecast.speed import Speed
from t2t.training.initial_state import build_model
from t2t.training.logging.clock import counted, duration
from t2t.training.recipe import MAX_EPOCHS, Recipe

ENOUGH = 0.5
"""Share of the usual epochs from which a scale is used."""
EVALUATION_SHARE = 0.1
"""Share of the training time for evaluations."""
TIME_EXPONENT = 0.8
"""Time grows more slowly than MACs: six times for twelve times as many on a CPU."""
TOLERANCE = 0.15
SHUTDOWN_SECONDS = 2.0

Make = Callable[[Scale | None, int], Recipe]
"""The recipe at a scale of the default recipe, or the only one, and its epochs."""
Measure = Callable[[Recipe], Speed]


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The time of a run."""

    minutes: float
    asked: bool
    """Whether it was asked for and is filled, or is only a limit."""
    started: float
    """When the command started, by `time.monotonic()`."""

    def seconds_left(self) -> float:
        """The seconds that are left for the run."""
        return 60 * self.minutes - (time.monotonic() - self.started) - SHUTDOWN_SECONDS


def within(
    budget: Budget,
    make: Make,
    scales: list[Scale],
    usual: int,
    num_images: int,
    measure: Measure,
    *,
    by_macs: bool,
) -> tuple[Recipe, list[str]]:
    """The recipe that fits into the time, and sentences that say why.

    `usual` is its number of epochs without a limit. With `by_macs`, as for a CPU, only
    the smallest scale and the chosen one are timed.
    """
    scale, speed = choose_scale(
        budget, make, scales, usual, num_images, measure, by_macs
    )
    recipe = make(scale, usual)
    for attempt in range(3):
        if attempt > 0:
            speed = measure(recipe)
        epochs = epochs_within(budget, recipe, speed, num_images, usual)
        before, recipe = recipe, make(scale, max(epochs, 1))
        recipe = with_few_evaluations(recipe, speed, num_images)
        # Batch size and phases depend on the epochs.
        if same_steps(before, recipe):
            break
    seconds = speed.run_seconds(recipe, num_images)
    if budget.asked and seconds > (1 + TOLERANCE) * budget.seconds_left():
        raise too_short(budget, make(scale, 1), speed, num_images)
    return recipe, notes(budget, recipe, speed, seconds, usual, scale, scales)


def same_steps(first: Recipe, second: Recipe) -> bool:
    """Whether the steps of two recipes take the same time."""
    return (first.batch_size, first.phases()) == (second.batch_size, second.phases())


def choose_scale(
    budget: Budget,
    make: Make,
    scales: list[Scale],
    usual: int,
    num_images: int,
    measure: Measure,
    by_macs: bool,
) -> tuple[Scale | None, Speed]:
    """The first scale that has time for enough epochs, else the last; its speed."""
    if not scales:
        return None, measure(make(None, usual))
    if not by_macs:
        for scale in scales:
            recipe = make(scale, usual)
            speed = measure(recipe)
            epochs = epochs_within(budget, recipe, speed, num_images, usual)
            if epochs >= ENOUGH * usual:
                break
        return scale, speed
    last = make(scales[-1], usual)
    speed = measure(last)
    seconds = speed.run_seconds(last, num_images) * ENOUGH
    for scale in scales[:-1]:
        recipe = make(scale, usual)
        ratio = (macs(recipe) / macs(last)) ** TIME_EXPONENT
        if seconds * ratio <= budget.seconds_left():
            return scale, measure(recipe)
    return scales[-1], speed


def macs(recipe: Recipe) -> int:
    """Multiplications for one image."""
    with torch.device("meta"):
        model = build_model(recipe, num_classes=10)
    found = macs_by_module(model, (recipe.channels, *recipe.image_size))
    return sum(items.total() for items in found.values())


def epochs_within(
    budget: Budget, recipe: Recipe, speed: Speed, num_images: int, usual: int
) -> int:
    """The most epochs that fit; 0 if one takes longer."""
    cheaper = with_few_evaluations(recipe, speed, num_images)
    one = speed.run_seconds(cheaper, num_images) / recipe.epochs
    most = MAX_EPOCHS if budget.asked else usual
    return min(max(int(budget.seconds_left() / one), 0), most)


def with_few_evaluations(recipe: Recipe, speed: Speed, num_images: int) -> Recipe:
    """The recipe with so few evaluations that they take a tenth of the time."""
    training = speed.run_seconds(recipe, num_images)
    training -= recipe.num_evaluations * speed.evaluation_seconds
    most = EVALUATION_SHARE * training / max(speed.evaluation_seconds, 1e-9)
    every = math.ceil(recipe.epochs / max(int(most), 1))
    return replace(recipe, evaluate_every=max(recipe.evaluate_every, every))


def too_short(
    budget: Budget, recipe: Recipe, speed: Speed, num_images: int
) -> UserError:
    """The error if a time was asked for that is shorter than one epoch."""
    seconds = speed.run_seconds(recipe, num_images)
    needed = (60 * budget.minutes - budget.seconds_left() + seconds) / 60
    return UserError(
        f"--minutes {budget.minutes:g} is too short: one epoch with its evaluation "
        f"takes about {duration(seconds)} here. Give at least --minutes "
        f"{1.1 * needed:.1f}, fewer images, or a smaller model."
    )


def notes(
    budget: Budget,
    recipe: Recipe,
    speed: Speed,
    seconds: float,
    usual: int,
    scale: Scale | None,
    scales: list[Scale],
) -> list[str]:
    """Sentences on what was chosen and why, and on how to have more."""
    is_full = scale is None or scale == scales[0]
    if not budget.asked and is_full and recipe.epochs >= usual:
        return []
    limit = f"{budget.minutes:g} minutes" + ("" if budget.asked else ", as on any CPU")
    what = scale or f"{recipe.model} at {recipe.image_size[0]} px"
    found = [
        f"Chosen for {limit}: {what}, {counted(recipe.epochs, 'epoch')}, about "
        f"{rounded(seconds)}. Measured here: {speed.step_seconds:.3g} s for a step of "
        f"{counted(recipe.batch_size, 'image')}, {speed.evaluation_seconds:.3g} s for "
        "an evaluation."
    ]
    if not is_full or recipe.epochs < usual:
        full = recipe.model if scale is None else scales[0]
        start = f" --from {shlex.quote(recipe.weights)}" if recipe.weights else ""
        found.append(
            f"The full recipe, best on a GPU, is {full}, {counted(usual, 'epoch')}: "
            f"t2t train --data {shlex.quote(recipe.data)}{start} --epochs {usual}"
        )
    return found
