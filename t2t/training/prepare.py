"""What a run prepares before its first step: kernels, compiled code and batches."""

from collections.abc import Iterable
from contextlib import nullcontext

import torch

from t2t.data.augment.pipeline import normalise
from t2t.data.batches import Batches, EvaluationBatches, LoaderOptions
from t2t.data.decoding.damage import Damage
from t2t.data.resident import DecodingProgress
from t2t.data.sources import Splits
from t2t.tasks.checks import checked_rows
from t2t.training.evaluation.evaluate import autocast
from t2t.training.forecast.random_batch import random_batch
from t2t.training.kernel_compiling import KernelCompiler, compile_in_parallel
from t2t.training.loaders import training_batches, validation_batches
from t2t.training.logging.console import RunConsole
from t2t.training.logging.stage import stage
from t2t.training.recipe import Phase
from t2t.training.runtime import Runtime
from t2t.training.sharding import unsharded
from t2t.training.step import Stepper
from t2t.training.switch_interval import switch_as_usual


def prepare(
    stepper: Stepper,
    phases: Iterable[Phase],
    splits: Splits,
    damage: Damage,
    console: RunConsole,
) -> tuple[Batches, EvaluationBatches]:
    """Opens the images for training and validation, while kernels are compiled."""
    recipe, runtime, world = stepper.recipe, stepper.runtime, stepper.world
    common = (world, loader_options(runtime), damage)
    train, val = splits.train, splits.val
    task = stepper.state.task
    with compile_in_parallel(stepper.uses_graphs) as kernels:
        if stepper.uses_graphs:
            with stage(console, "Finding the kernels to compile"):
                rehearse(stepper, phases, kernels)
        decoded = DecodingProgress()
        with stage(console, f"Opening {len(train):,} training images", decoded):
            batches = training_batches(recipe, train, *common, task, decoded)
        decoded = DecodingProgress()
        with stage(console, f"Opening {len(val):,} validation images", decoded):
            size = runtime.micro_batch
            validation = validation_batches(recipe, val, *common, size, decoded)
        with stage(console, "Compiling kernels", kernels.progress):
            kernels.wait()
    switch_as_usual()
    return batches, validation


def loader_options(runtime: Runtime) -> LoaderOptions:
    """The options of the runtime for reading images."""
    return LoaderOptions(num_workers=runtime.workers, max_pixels=runtime.max_pixels)


def rehearse(
    stepper: Stepper, phases: Iterable[Phase], kernels: KernelCompiler
) -> None:
    """Takes a step of each phase, and an evaluation, on noise; nothing is changed.

    Triton kernels are only submitted to the compiler, unless the step is compiled.
    """
    recipe, world, task = stepper.recipe, stepper.world, stepper.state.task
    num_images = recipe.batch_size // world.size
    batch = random_batch(recipe, num_images, task, world.device)
    augmentation = recipe.augmentation
    with nullcontext() if stepper.compiled else kernels.collect():
        stepper.rehearse(batch, phases)
        pixels = batch.views[0][: stepper.runtime.micro_batch]
        images = normalise(pixels, augmentation.mean, augmentation.std)
        task.eval()
        with (
            torch.no_grad(),
            autocast(world.device, stepper.runtime.dtype),
            unsharded(task),
            unsharded(stepper.state.model),
        ):
            labels = batch.labels[: len(images)]
            values = task.score(stepper.state.model, images, labels)
            checked_rows(f"{type(task).__name__}.score", values, len(images))
        task.train()
