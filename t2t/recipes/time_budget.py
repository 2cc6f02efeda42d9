"""The epochs, and the scale of the default recipe, that fit into a time."""

import math
import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from t2t.analysis.meter import macs_by_module
from t2t.errors import UserError
from t2t.formatting import counted, duration
from t2t.models.without_weights import without_weights
from t2t.recipes.default import Scale
from t2t.training.forecast.advice import rounded
from t2t.training.forecast.speed import Speed
from t2t.training.initial_state import build_model
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


@dataclass(frozen=True)
class TimedChoice:
    """Chooses the recipe that fits into a time."""

    budget: Budget
    make: Make
    scales: list[Scale]
    """The most accurate first; empty if the recipe has one scale only."""
    usual_epochs: int
    """Epochs without a limit."""
    num_images: int
    measure: Measure
    by_macs: bool
    """Time only the smallest scale and the chosen one, as for a CPU."""

    def recipe(self) -> tuple[Recipe, list[str]]:
        """The recipe, and sentences that say why."""
        scale, speed = self.choose_scale()
        recipe = self.make(scale, self.usual_epochs)
        for attempt in range(3):
            if attempt > 0:
                speed = self.measure(recipe)
            epochs = max(self.num_epochs(recipe, speed), 1)
            before, recipe = recipe, self.make(scale, epochs)
            recipe = self.with_few_evaluations(recipe, speed)
            # Batch size and phases depend on the epochs.
            if same_steps(before, recipe):
                break
        seconds = speed.run_seconds(recipe, self.num_images)
        left = self.budget.seconds_left()
        if self.budget.asked and seconds > (1 + TOLERANCE) * left:
            raise self.too_short(self.make(scale, 1), speed)
        return recipe, self.notes(recipe, speed, seconds, scale)

    def choose_scale(self) -> tuple[Scale | None, Speed]:
        """The first scale that has time for enough epochs, else the last; its speed."""
        scales, make, measure = self.scales, self.make, self.measure
        usual = self.usual_epochs
        if not scales:
            return None, measure(make(None, usual))
        if not self.by_macs:
            for scale in scales:
                recipe = make(scale, usual)
                speed = measure(recipe)
                if self.num_epochs(recipe, speed) >= ENOUGH * usual:
                    break
            return scale, speed
        last = make(scales[-1], usual)
        speed = measure(last)
        seconds = speed.run_seconds(last, self.num_images) * ENOUGH
        for scale in scales[:-1]:
            recipe = make(scale, usual)
            ratio = (macs(recipe) / macs(last)) ** TIME_EXPONENT
            if seconds * ratio <= self.budget.seconds_left():
                return scale, measure(recipe)
        return scales[-1], speed

    def num_epochs(self, recipe: Recipe, speed: Speed) -> int:
        """The most epochs that fit; 0 if one takes longer."""
        cheaper = self.with_few_evaluations(recipe, speed)
        one = speed.run_seconds(cheaper, self.num_images) / recipe.epochs
        most = MAX_EPOCHS if self.budget.asked else self.usual_epochs
        return min(max(int(self.budget.seconds_left() / one), 0), most)

    def with_few_evaluations(self, recipe: Recipe, speed: Speed) -> Recipe:
        """The recipe with so few evaluations that they take a tenth of the time."""
        training = speed.run_seconds(recipe, self.num_images)
        training -= recipe.num_evaluations * speed.evaluation_seconds
        most = EVALUATION_SHARE * training / max(speed.evaluation_seconds, 1e-9)
        every = math.ceil(recipe.epochs / max(int(most), 1))
        return replace(recipe, evaluate_every=max(recipe.evaluate_every, every))

    def too_short(self, recipe: Recipe, speed: Speed) -> UserError:
        """The error if a time was requested that is shorter than one epoch."""
        budget = self.budget
        seconds = speed.run_seconds(recipe, self.num_images)
        needed = (60 * budget.minutes - budget.seconds_left() + seconds) / 60
        return UserError(
            f"--minutes {budget.minutes:g} is too short: one epoch with its evaluation "
            f"takes about {duration(seconds)} here. Give at least --minutes "
            f"{1.1 * needed:.1f}, fewer images, or a smaller model."
        )

    def notes(
        self, recipe: Recipe, speed: Speed, seconds: float, scale: Scale | None
    ) -> list[str]:
        """Sentences on what was chosen and why, and on how to have more."""
        asked, usual = self.budget.asked, self.usual_epochs
        is_full = scale is None or scale == self.scales[0]
        if not asked and is_full and recipe.epochs >= usual:
            return []
        limit = f"{self.budget.minutes:g} minutes{'' if asked else ', as on any CPU'}"
        what = scale or f"{recipe.model} at {recipe.image_size[0]} px"
        found = [
            f"Chosen for {limit}: {what}, {counted(recipe.epochs, 'epoch')}, about "
            f"{rounded(seconds)}. Measured here: {speed.step_seconds:.3g} s for a step "
            f"of {counted(recipe.batch_size, 'image')}, "
            f"{speed.evaluation_seconds:.3g} s for an evaluation."
        ]
        if not is_full or recipe.epochs < usual:
            full = recipe.model if scale is None else self.scales[0]
            start = f" --from {shlex.quote(recipe.weights)}" if recipe.weights else ""
            found.append(
                f"The full recipe, best on a GPU, is {full}, "
                f"{counted(usual, 'epoch')}: t2t train --data "
                f"{shlex.quote(recipe.data)}{start} --epochs {usual}"
            )
        return found


def same_steps(first: Recipe, second: Recipe) -> bool:
    """Whether the steps of two recipes take the same time."""
    return (first.batch_size, first.phases()) == (second.batch_size, second.phases())


def macs(recipe: Recipe) -> int:
    """Multiplications for one image."""
    with without_weights():
        model = build_model(recipe, num_classes=10)
    found = macs_by_module(model, (recipe.channels, *recipe.image_size))
    return sum(items.total() for items in found.values())
