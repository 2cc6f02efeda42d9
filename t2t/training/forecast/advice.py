"""Notes before a run: the estimated time, and warnings about few images."""

import math
import shlex
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from t2t.data.class_balance import balance_factors, class_counts, is_uneven
from t2t.data.sampler import steps_per_epoch
from t2t.data.sources import Source, Splits
from t2t.data.sources.in_memory import is_in_memory
from t2t.data.typical_size import typical_side
from t2t.errors import UserError
from t2t.formatting import duration
from t2t.tasks import task_class
from t2t.training.distributed import World
from t2t.training.forecast.plan import num_evaluated, plan
from t2t.training.forecast.random_batch import random_batch
from t2t.training.forecast.step_times import GPUS
from t2t.training.initial_state import new_state
from t2t.training.recipe import Recipe
from t2t.training.runtime import Runtime
from t2t.training.step import Stepper

FEW_TO_TRAIN = 5_000
"""With fewer training images, pretrained weights are recommended."""
FEW_TO_VALIDATE = 1_000
"""With fewer validation images, the confidence interval exceeds ± 3 points."""
SMALL_SIDE, MUCH_LARGER = 64, 2.5
"""Warns of images this many times larger than a training size up to this side."""
NUM_TRIED = 8
SECONDS_TRIED = 1.0
"""A whole step is timed only if it takes less than this."""


def advice(
    recipe: Recipe,
    runtime: Runtime,
    world: World,
    splits: Splits,
    step: int,
    is_timed: bool = False,
) -> list[str]:
    """Sentences for the log of a run that starts at a step.

    The time is last; it is not estimated if it has been.
    """
    num_train, num_val = len(splits.train), len(splits.val)
    notes = []
    if recipe.name == "own" and recipe.weights is None and num_train < FEW_TO_TRAIN:
        command = f"t2t train --data {shlex.quote(recipe.data)} --from builtin"
        if is_in_memory(recipe.data):  # which the command line does not have
            command = 't2t.train(data=…, from_="builtin")'
        notes.append(
            f"{num_train:,} images are few to train from scratch: weights trained on "
            "similar images (--from WEIGHTS) are a better start. The built-in model, "
            f"trained on CIFAR-10 at 32 pixels, is a quick one: {command}"
        )
    if num_val < FEW_TO_VALIDATE and task_class(recipe.task).metrics[0].name == "top1":
        notes.append(
            f"{num_val:,} validation images: the 95 % confidence interval is about ± "
            f"{margin(50, num_val):.1f} points at an accuracy of 50 %, ± "
            f"{margin(95, num_val):.1f} at 95 %."
        )
    notes += balance_notes(recipe, splits.train)
    notes += size_notes(recipe, splits.train)
    if is_timed:
        return notes
    classes = splits.train.classes
    seconds = forecast(recipe, runtime, world, num_train, num_val, classes)
    num_steps = steps_per_epoch(num_train, recipe.batch_size) * recipe.epochs
    left = remaining_work(recipe, step, num_steps)
    if seconds is not None and left > 0:
        notes.append(
            f"Estimated time: {rounded(seconds * left)} on {world.device.type}."
        )
    return notes


def size_notes(recipe: Recipe, source: Source) -> list[str]:
    """A sentence on photographs that a run sees as very small images."""
    height, width = recipe.image_size
    if min(height, width) > SMALL_SIDE:
        return []
    side = typical_side(source)
    if side < MUCH_LARGER * min(height, width):
        return []
    larger = "set a larger image_size, with a model for it (t2t models)"
    if recipe.weights is not None:  # whose positions are interpolated
        larger = f"add --image-size {2 * max(height, width)}, which takes more time"
    return [
        f"The images have about {side} pixels a side, and this run sees them at "
        f"{height}×{width}: for more detail, {larger}."
    ]


def balance_notes(recipe: Recipe, source: Source) -> list[str]:
    """A sentence on uneven classes, and on how they are balanced; none if even."""
    task = task_class(recipe.task)
    if not (task.balanced_by and source.is_labelled):
        return []
    counts = class_counts(source)
    largest = int(counts.argmax())
    smallest = int(np.where(counts > 0, counts, len(source) + 1).argmin())
    few, many = int(counts[smallest]), int(counts[largest])
    names = [repr(source.classes[each]) for each in (smallest, largest)]
    if not is_uneven(source):
        if recipe.balance is None:
            return []
        return [
            f"The classes are about even ({few:,} to {many:,} images), so --balance "
            f"{recipe.balance} changes little."
        ]
    if recipe.balance is None:
        options = {
            "sampling": "shows small classes more often",
            "weights": "counts them more in the loss",
        }
        choice = " or ".join(f"--balance {k} ({options[k]})" for k in task.balanced_by)
        return [
            f"Classes are uneven: {many:,} images of {names[1]}, {few:,} of {names[0]} "
            f"({many / few:.3g} to 1). To favour small classes, add {choice}; macro "
            "accuracy counts all classes the same."
        ]
    factors = balance_factors(counts, recipe.own_balance_power)
    less, more = (f"{factors[each]:.2g}" for each in (largest, smallest))
    if recipe.balance == "sampling":
        how = f"is shown {more} times an epoch, one of {names[1]} ({many:,}) {less}"
    else:
        how = f"counts {more} times in the loss, one of {names[1]} ({many:,}) {less}"
    return [
        f"Classes are balanced by {recipe.balance}: an image of {names[0]} ({few:,}"
        f"{' image' if few == 1 else ' images'}) {how} times."
    ]


def confidence_interval(top1: float, num_images: int) -> tuple[float, float]:
    """The 95 % Wilson score interval of an accuracy, all in per cent."""
    share, num, z = min(max(top1 / 100, 0.0), 1.0), max(num_images, 1), 1.96
    scale = 1 + z**2 / num
    centre = (share + z**2 / (2 * num)) / scale
    half = z * math.sqrt(share * (1 - share) / num + (z / (2 * num)) ** 2) / scale
    return 100 * max(centre - half, 0.0), 100 * min(centre + half, 1.0)


def margin(top1: float, num_images: int) -> float:
    """Half of the width of the 95 % confidence interval, in points."""
    low, high = confidence_interval(top1, num_images)
    return (high - low) / 2


def remaining_work(recipe: Recipe, step: int, num_steps: int) -> float:
    """The fraction of a run's work that remains after a step."""
    since = min(step / max(num_steps, 1), 1.0)
    return 0.0 if since == 1 else recipe.cost(since) / recipe.cost()


def forecast(
    recipe: Recipe,
    runtime: Runtime,
    world: World,
    num_train: int,
    num_val: int,
    classes: Sequence[str] = (),
) -> float | None:
    """Estimated seconds of a whole run on this machine; None if unknown."""
    if world.is_distributed:
        return None
    if world.device.type == "cuda":
        return planned_seconds(recipe, runtime, num_train, num_val)
    try:
        with torch.random.fork_rng(devices=[]):
            one = step_seconds(recipe, runtime, world, classes)
    except Exception:  # a failed estimate must not stop the run
        return None
    num_steps = steps_per_epoch(num_train, recipe.batch_size) * recipe.epochs
    evaluations = num_evaluated(recipe, num_val) / recipe.batch_size / 3
    return one * (num_steps * recipe.cost() + evaluations)


def planned_seconds(
    recipe: Recipe, runtime: Runtime, num_train: int, num_val: int
) -> float | None:
    """Seconds by `t2t plan`; None for GPUs and models that it does not know."""
    name = torch.cuda.get_device_name()
    known = next((gpu for gpu in GPUS if gpu in name), None)
    if known is None or runtime.precision == "fp32":
        return None
    try:
        found = plan(recipe, 1, gpu=known, num_images=num_train, num_validation=num_val)
    except UserError:
        return None
    return 3600 * found.hours


def step_seconds(
    recipe: Recipe, runtime: Runtime, world: World, classes: Sequence[str]
) -> float:
    """Seconds of a step without token dropping, timed on a separate model and noise."""
    runtime = replace(runtime, compile="off")
    plain = replace(recipe, weights=None)
    state = new_state(plain, runtime, world, len(classes) or 10, classes)

    def seconds(num_images: int) -> float:
        batch = random_batch(plain, num_images, state.task)
        started = time.perf_counter()
        stepper.train_step(batch)
        return time.perf_counter() - started

    stepper = Stepper(plain, runtime, world, state)
    stepper.set_phase(stepper.phase._replace(keep=1.0, scale=1.0))
    few = min(NUM_TRIED, recipe.batch_size)
    seconds(min(2, few))  # warm-up
    one = seconds(few) * recipe.batch_size / few
    return min(one, seconds(recipe.batch_size)) if one < SECONDS_TRIED else one


def rounded(seconds: float) -> str:
    """A time rounded to about two digits."""
    for unit in (1, 5, 10, 60, 300, 600, 3600):
        if seconds < 24 * unit:
            break
    return duration(max(round(seconds / unit), 1) * unit)
