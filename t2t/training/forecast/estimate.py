"""Time and memory of a run, estimated from a few steps: `t2t train --dry-run`."""

import time
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from t2t.config import to_json
from t2t.data.crops import shrink
from t2t.data.rng import CounterRng
from t2t.data.sampler import steps_per_epoch
from t2t.data.sources import Splits
from t2t.data.sources.torchvision_sets import no_downloads
from t2t.errors import UserError
from t2t.formatting import counted, duration, pace
from t2t.models.config import ModelConfig
from t2t.tasks.base import Task, Views
from t2t.training.check_names import check_names
from t2t.training.distributed import World, find_device
from t2t.training.evaluation.evaluate import autocast
from t2t.training.forecast.advice import balance_notes, size_notes
from t2t.training.forecast.plan import values_per_parameter
from t2t.training.forecast.random_batch import random_batch
from t2t.training.initial_state import new_state
from t2t.training.loaders import open_data
from t2t.training.recipe import Recipe
from t2t.training.runtime import Runtime, resolve_runtime
from t2t.training.state import TrainState
from t2t.training.step import check_any_size, keep_tokens

NUM_TRIED = {"cpu": 8, "mps": 32}
SECONDS_TRIED = 10.0
"""After this time, two steps are enough."""


def estimate(recipe: Recipe, runtime: Runtime) -> str:
    """The whole recipe, its steps, and their estimated time and memory.

    Without the data, steps and time are unknown.
    """
    recipe.check_weights()
    check_names(recipe)
    world = World(0, 1, find_device(runtime.device))
    runtime = resolve_runtime(runtime, world)
    splits, missing = None, ""
    try:
        with no_downloads():
            splits = open_data(recipe)
    except UserError as error:
        missing = str(error)
    if splits is not None:  # too few images are an error before steps are timed
        steps_per_epoch(len(splits.train), recipe.batch_size)
    num_classes = len(splits.train.classes) if splits else ModelConfig.num_classes
    classes = splits.train.classes if splits else None
    state = new_state(recipe, runtime, world, num_classes, classes)
    num_at_once = min(runtime.micro_batch or recipe.batch_size, recipe.batch_size)
    seconds = bytes_per_image = 0.0
    for phase, share in recipe.phases().items():
        keep_tokens(state.model, recipe.model, phase.keep)
        check_any_size(state.model, recipe.model, phase.scale)
        took, num_bytes = try_steps(
            state, recipe, runtime, world, num_at_once, phase.scale
        )
        seconds += share * took
        bytes_per_image = max(bytes_per_image, num_bytes)
    speed = (
        f"{pace(1 / seconds)}, estimated from a few uncompiled steps in "
        f"{runtime.precision} without loading images"
    )
    if splits:
        *steps, time_taken = describe_steps(recipe, splits, seconds, world)
        steps.append(f"{time_taken} at {speed}")
        steps += balance_notes(recipe, splits.train)
        steps += [*size_notes(recipe, splits.train), *state.task.notes]
    else:
        steps = [
            f"Steps and time are unknown because the data cannot be opened: {missing}",
            f"On {world.device} about {speed}",
        ]
    lines = [
        *(f"{key}: {shown}" for key, shown in flat(to_json(recipe))),
        "",
        *steps,
        *([] if state.loaded is None else [str(state.loaded)]),
        describe_memory(recipe, state, bytes_per_image, num_at_once),
    ]
    return "\n".join(lines)


def describe_memory(
    recipe: Recipe, state: TrainState, bytes_per_image: float, num_at_once: int
) -> str:
    """A line on the memory of the weights and of the activations."""
    parameters = [p for p in state.task.parameters() if p.requires_grad]
    weights = sum(p.numel() * p.element_size() for p in parameters)
    fixed = values_per_parameter(recipe) * weights / 2**30
    activations = bytes_per_image * num_at_once / 2**30
    return (
        f"About {fixed + activations:.2g} GiB: {fixed:.2g} for weights, gradients, "
        f"optimizer and EMA, {activations:.2g} for the activations of {num_at_once} "
        "images (see --micro-batch)"
    )


def describe_steps(
    recipe: Recipe, splits: Splits, seconds: float, world: World
) -> list[str]:
    """Lines on images, steps and time, at `seconds` per image."""
    per_epoch = steps_per_epoch(len(splits.train), recipe.batch_size)
    num_images = per_epoch * recipe.batch_size * recipe.epochs
    return [
        f"{len(splits.train):,} training and {len(splits.val):,} validation images, "
        f"{len(splits.train.classes)} classes",
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
    state: TrainState,
    recipe: Recipe,
    runtime: Runtime,
    world: World,
    num_at_once: int,
    scale: float = 1.0,
) -> tuple[float, float]:
    """Seconds and bytes that one image takes, from a few steps on random images."""
    precision = runtime.dtype
    num = min(NUM_TRIED.get(world.device.type, num_at_once), num_at_once)
    views = random_views(state.task, recipe, num, world.device, scale)
    num_bytes = 0.0
    times = []
    for _ in range(4):
        started = time.perf_counter()
        with SavedBytes(state.task) as saved, autocast(world.device, precision):
            loss = state.trained(views)["loss"]
        state.scaler.scale(loss).backward()
        loss.item()
        times.append(time.perf_counter() - started)
        num_bytes = saved.num_bytes / num
        if len(times) > 1 and sum(times) > SECONDS_TRIED:
            break
    return min(times[1:]) / num, num_bytes


def random_views(
    task: Task,
    recipe: Recipe,
    num_images: int,
    device: torch.device,
    scale: float = 1.0,
) -> Views:
    """The task's views of images of noise."""
    batch = random_batch(recipe, num_images, task, device)
    pixels = batch.views
    if scale < 1:
        pixels = tuple(shrink(each, scale) for each in pixels)
    rng = CounterRng.of(0, torch.zeros((), dtype=torch.int64), batch.keys)
    light = replace(recipe.augmentation.light(), mix_group=None)
    return task.views(pixels, batch.labels, rng, light)


class SavedBytes:
    """Counts the bytes that a forward pass saves for the backward pass."""

    def __init__(self, model: nn.Module) -> None:
        self.num_bytes = 0
        self.seen = {p.untyped_storage().data_ptr() for p in model.parameters()}
        self.hooks = saved_tensors_hooks(self.count, lambda tensor: tensor)

    def count(self, tensor: Tensor) -> Tensor:
        """Counts a tensor whose storage is new."""
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self.seen:
            self.seen.add(storage.data_ptr())
            self.num_bytes += storage.nbytes()
        return tensor

    def __enter__(self) -> "SavedBytes":
        self.hooks.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.hooks.__exit__(*error)
