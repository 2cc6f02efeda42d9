"""What a run would take, measured on a few steps instead of all."""

import time
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from t2t.config import to_json
from t2t.data.rng import CounterRng
from t2t.data.sampler import steps_per_epoch
from t2t.data.sources import Splits
from t2t.data.sources.torchvision_sets import no_downloads
from t2t.errors import UserError
from t2t.models.config import ModelConfig
from t2t.tasks.base import Task, Views
from t2t.training.distributed import World, find_device
from t2t.training.evaluation.evaluate import autocast
from t2t.training.forecast.plan import num_words
from t2t.training.forecast.random_batch import random_batch
from t2t.training.loaders import open_data
from t2t.training.logging.clock import counted, duration, pace
from t2t.training.recipe import Recipe
from t2t.training.runtime import PRECISIONS, Runtime, resolve_runtime
from t2t.training.state import TrainState, new_state
from t2t.training.step import keep_tokens

NUM_TRIED = {"cpu": 8, "mps": 32}
SECONDS_TRIED = 10.0
"""After which two steps tell enough."""


def estimate(recipe: Recipe, runtime: Runtime) -> str:
    """The whole recipe, its steps, and their estimated time and memory.

    Without the data, steps and time are left out.
    """
    recipe.check_weights()
    world = World(0, 1, find_device(runtime.device))
    runtime = resolve_runtime(runtime, world)
    splits, missing = None, ""
    try:
        with no_downloads():
            splits = open_data(recipe)
    except UserError as error:
        missing = str(error)
    num_classes = len(splits.train.classes) if splits else ModelConfig.num_classes
    classes = splits.train.classes if splits else None
    run = new_state(recipe, runtime, world, num_classes, classes)
    held = min(runtime.micro_batch or recipe.batch_size, recipe.batch_size)
    seconds = kept = 0.0
    for phase, share in recipe.phases().items():
        keep_tokens(run.model, recipe.model, phase.keep)
        one, stored = try_steps(run, recipe, runtime, world, held)
        seconds += share * one
        kept = max(kept, stored)
    weights = sum(
        p.numel() * p.element_size() for p in run.task.parameters() if p.requires_grad
    )
    state = num_words(recipe) * weights
    speed = (
        f"{pace(1 / seconds)}, estimated from a few uncompiled steps in "
        f"{runtime.precision} without loading images"
    )
    if splits:
        *about, time_taken = about_steps(recipe, splits, seconds, world)
        about.append(f"{time_taken} at {speed}")
    else:
        about = [
            f"Steps and time are unknown, since the data cannot be opened: {missing}",
            f"On {world.device} about {speed}",
        ]
    lines = [
        *(f"{key}: {shown}" for key, shown in flat(to_json(recipe))),
        "",
        *about,
        *([] if run.loaded is None else [str(run.loaded)]),
        f"About {(state + kept * held) / 2**30:.2g} GiB: "
        f"{state / 2**30:.2g} for weights, gradients, optimizer and EMA, "
        f"{kept * held / 2**30:.2g} for {held} images at once (see --micro-batch)",
    ]
    return "\n".join(lines)


def about_steps(
    recipe: Recipe, splits: Splits, seconds: float, world: World
) -> list[str]:
    """Lines on images, steps and time, at `seconds` per image."""
    per_epoch = steps_per_epoch(len(splits.train), recipe.batch_size)
    num_images = per_epoch * recipe.batch_size * recipe.epochs
    return [
        f"{len(splits.train):,} training images and {len(splits.val):,} to validate "
        f"on, {len(splits.train.classes)} classes",
        *splits.notes,
        f"{counted(recipe.epochs, 'epoch')} of {counted(per_epoch, 'step')} of "
        f"{counted(recipe.batch_size, 'image')}: "
        f"{counted(per_epoch * recipe.epochs, 'step')}",
        f"About {duration(seconds * num_images)} on {world.device}",
    ]


def flat(data: dict[str, Any], at: str = "") -> list[tuple[str, Any]]:
    """Nested fields as dotted names, as --set takes them."""
    rows: list[tuple[str, Any]] = []
    for key, value in data.items():
        if isinstance(value, dict) and key != "model_args":
            rows += flat(value, f"{at}{key}.")
        else:
            rows.append((f"{at}{key}", value))
    return rows


def try_steps(
    run: TrainState,
    recipe: Recipe,
    runtime: Runtime,
    world: World,
    held: int,
) -> tuple[float, float]:
    """Seconds and bytes that one image takes, from a few steps on random images."""
    precision = PRECISIONS[runtime.precision or "fp32"]
    num = min(NUM_TRIED.get(world.device.type, held), held)
    views = random_views(run.task, recipe, num, world.device)
    kept = 0.0
    times = []
    for _ in range(4):
        started = time.perf_counter()
        with Kept(run.task) as saved, autocast(world.device, precision):
            loss = run.trained(views)["loss"]
        run.scaler.scale(loss).backward()
        loss.item()
        times.append(time.perf_counter() - started)
        kept = saved.num_bytes / num
        if len(times) > 1 and sum(times) > SECONDS_TRIED:
            break
    return min(times[1:]) / num, kept


def random_views(
    task: Task, recipe: Recipe, num_images: int, device: torch.device
) -> Views:
    """The task's views of images of noise."""
    batch = random_batch(recipe, num_images, task, device)
    rng = CounterRng.of(0, torch.zeros((), dtype=torch.int64), batch.keys)
    light = replace(recipe.augmentation.light(), mix_group=None)
    return task.views(batch.views, batch.labels, rng, light)


class Kept:
    """Counts the bytes that a forward pass keeps for the backward pass."""

    def __init__(self, model: nn.Module) -> None:
        self.num_bytes = 0
        self.seen = {p.untyped_storage().data_ptr() for p in model.parameters()}
        self.hooks = saved_tensors_hooks(self.keep, lambda tensor: tensor)

    def keep(self, tensor: Tensor) -> Tensor:
        """Takes note of a tensor whose storage is new."""
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self.seen:
            self.seen.add(storage.data_ptr())
            self.num_bytes += storage.nbytes()
        return tensor

    def __enter__(self) -> "Kept":
        self.hooks.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.hooks.__exit__(*error)
