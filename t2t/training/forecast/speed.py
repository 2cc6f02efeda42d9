"""The speed of a run on this machine, timed on a few of its own steps."""

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch

from t2t.data.decoding.damage import Damage, damage_limit
from t2t.data.sampler import Batch, steps_per_epoch
from t2t.data.sources import Splits
from t2t.training.distributed import World, find_device
from t2t.training.evaluation.evaluate import Normalize, autocast
from t2t.training.initial_state import new_state
from t2t.training.logging.console import RunConsole
from t2t.training.prepare import prepare
from t2t.training.recipe import Recipe
from t2t.training.runtime import Runtime, resolve_runtime
from t2t.training.step import Stepper
from t2t.training.threads import choose_threads, use_threads

SECONDS_TIMED = 2.0
"""Maximum per phase."""
MAX_TIMED = 20
FEW, SEVERAL = 4, 12
"""Images of the two parts of a step that takes too long to be timed as a whole."""


@dataclass(frozen=True)
class Speed:
    """The times of a run on this machine."""

    step_seconds: float
    """The mean over the phases."""
    evaluation_seconds: float
    """Evaluation of the raw model and the EMA on all validation images."""

    def run_seconds(self, recipe: Recipe, num_images: int) -> float:
        """The seconds of a run's steps and evaluations."""
        steps = steps_per_epoch(num_images, recipe.batch_size) * recipe.epochs
        evaluations = recipe.num_evaluations * self.evaluation_seconds
        return steps * self.step_seconds + evaluations


def measure_speed(recipe: Recipe, runtime: Runtime, splits: Splits) -> Speed:
    """Trains a separate model for a few steps of each phase; changes no run."""
    world = World(0, 1, find_device(runtime.device))
    runtime = replace(resolve_runtime(runtime, world), compile="off")
    on_cpu = world.device.type == "cpu"
    threads = use_threads(choose_threads(runtime.threads)) if on_cpu else nullcontext()
    devices = [] if world.device.type != "cuda" else [torch.cuda.current_device()]
    augmentation = replace(recipe.augmentation, mix_group=None)
    plain = replace(
        recipe, weights=None, weights_checksum=None, augmentation=augmentation
    )
    with threads, torch.random.fork_rng(devices=devices):
        classes = splits.train.classes
        state = new_state(plain, runtime, world, len(classes), classes)
        stepper = Stepper(plain, runtime, world, state)
        quiet = RunConsole(quiet=True)
        num_images = len(splits.train) + len(splits.val)
        damage = Damage(damage_limit(runtime.max_damaged, num_images))
        batches, validation = prepare(stepper, plain.phases(), splits, damage, quiet)
        loaded = stepper.load(batches.steps(0, 10**9))
        step_seconds = 0.0
        for phase, share in plain.phases().items():
            stepper.set_phase(phase)
            step_seconds += share * time_phase(stepper, lambda: next(loaded))
        loaded.close()
        first = next(iter(validation))
        num_models = 1 if state.ema is None else 2
        num_evaluated = num_models * validation.num_steps * len(first.labels)
        evaluation = num_evaluated * time_evaluation(stepper, first)
        return Speed(step_seconds, evaluation)


def time_phase(stepper: Stepper, next_batch: Callable[[], Batch]) -> float:
    """Seconds of a step, with the making of its batch."""
    batch = next_batch()
    num_images = len(batch.labels)
    if stepper.uses_graphs:
        for _ in range(3):  # until the step is captured
            stepper.train_step(next_batch())
        return time_calls(lambda: stepper.train_step(next_batch()))
    if num_images > 2 * SEVERAL:
        stepper.train_step(part_of(batch, FEW))  # the first step allocates memory
        few = timed(lambda: stepper.train_step(part_of(batch, FEW)))
        several = timed(lambda: stepper.train_step(part_of(batch, SEVERAL)))
        # An optimizer's step takes the same time for every number of images.
        per_image = max(several - few, several / SEVERAL / 2) / (SEVERAL - FEW)
        whole = several + per_image * (num_images - SEVERAL)
        if whole > SECONDS_TIMED:
            return whole + timed(next_batch)
    stepper.train_step(batch)
    return time_calls(lambda: stepper.train_step(next_batch()))


def time_evaluation(stepper: Stepper, batch: Batch) -> float:
    """Seconds of an image's evaluation."""
    recipe, state, device = stepper.recipe, stepper.state, stepper.world.device
    normalize = Normalize(recipe.augmentation.mean, recipe.augmentation.std)
    part = part_of(batch, min(len(batch.labels), 64))
    state.task.eval()

    def evaluate() -> None:
        with torch.no_grad(), autocast(device, stepper.runtime.dtype):
            values = state.task.score(state.model, normalize(part), part.labels)
        next(iter(values.values())).cpu()

    evaluate()
    seconds = timed(evaluate) / len(part.labels)
    state.task.train()
    return seconds


def part_of(batch: Batch, num: int) -> Batch:
    """The first images of a batch."""
    views = tuple(view[:num] for view in batch.views)
    return Batch(views, *(each[:num] for each in batch[1:]))


def time_calls(call: Callable[[], object]) -> float:
    """The mean seconds of a call, over about two seconds."""
    times: list[float] = []
    while len(times) < MAX_TIMED and sum(times) < SECONDS_TIMED:
        times.append(timed(call))
    return sum(times) / len(times)


def timed(call: Callable[[], object]) -> float:
    """The seconds of a call."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started
