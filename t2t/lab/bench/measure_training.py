"""Measures the training step of recipes, on random images and from files."""

import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from itertools import product
from typing import NamedTuple

import numpy as np
import torch
from rich.console import Console

from t2t.lab.bench.cases import model_flops
from t2t.lab.bench.host_cost import host_cost
from t2t.lab.bench.measure import MeasuredRow, Row, failed_row, free_memory, rounded
from t2t.lab.bench.profiling import profile_steps
from t2t.lab.bench.timing import (
    PeakMemory,
    Step,
    Timing,
    device_name,
    matrix_rate,
    time_steps,
)
from t2t.lab.bench.trainer import BenchTrainer, Files
from t2t.models.without_weights import without_weights
from t2t.training.distributed import World, init_distributed
from t2t.training.initial_state import build_model
from t2t.training.logging.stage import stage
from t2t.training.recipe import Phase, Recipe
from t2t.training.runtime import Runtime

# Enough for compiling and graph capture.
NUM_WARM_UPS = {"cuda": 12}
# Two seconds more: pinned memory is allocated on first use.
NUM_FED_WARM_UPS = {"cuda": 80}


def measure_recipes(
    recipes: Sequence[Recipe],
    runtimes: Sequence[Runtime],
    device: torch.device,
    files: Files | None,
    command: str,
    *,
    seconds: float = 3.0,
    profiled: bool = False,
    in_group: bool = False,
) -> Iterator[MeasuredRow]:
    """Yields rows per recipe and runtime; a failure gives its reason.

    With `in_group`, this process trains as one of many: in a group of one.
    """
    with init_distributed(str(device), group_of_one=in_group) as world:
        chosen = product(recipes, runtimes)
        yield from measure_in(world, chosen, files, command, seconds, profiled)


def measure_in(
    world: World,
    chosen: Iterable[tuple[Recipe, Runtime]],
    files: Files | None,
    command: str,
    seconds: float,
    profiled: bool,
) -> Iterator[MeasuredRow]:
    """Yields rows per recipe and runtime; a failure gives its reason."""
    device = world.device
    for recipe, runtime in chosen:
        trainer = BenchTrainer(recipe, runtime, device, files, world)
        about = describe(trainer, command)
        from_files = {**about, **loader_options_row(trainer)}
        reason: Row = {}
        try:
            for row, profile in measure_trainer(trainer, seconds, profiled):
                alone = row.get("source") == "synthetic"
                yield MeasuredRow({**(about if alone else from_files), **row}, profile)
        except Exception as error:
            reason = failed_row(error)
        del trainer
        free_memory(device)
        if reason:
            yield MeasuredRow({**from_files, **reason})


def measure_trainer(
    trainer: BenchTrainer, seconds: float, profiled: bool
) -> Iterator[MeasuredRow]:
    """The speed of the same step on random images, then from files.

    On random images every phase of the recipe is timed, from files the first one.
    """
    peak = PeakMemory(trainer.device)
    trainer.start()
    alone = measure_random(trainer, peak, seconds, profiled)
    yield alone.measured
    if trainer.files is not None:
        peak.reset()  # excludes the matrix products of `matrix_rate`
        yield measure_files(trainer, alone, peak, seconds, profiled)


class RandomImages(NamedTuple):
    """The measurement of a step on random images."""

    measured: MeasuredRow
    timings: dict[Phase, Timing]
    memory: float | None


def measure_random(
    trainer: BenchTrainer, peak: PeakMemory, seconds: float, profiled: bool
) -> RandomImages:
    """The speed of the step on random images, in every phase of the recipe."""
    device, batch_size = trainer.device, trainer.recipe.batch_size
    words = "Compiling" if trainer.is_compiled else "Preparing"
    batches = trainer.stepper.load(trainer.synthetic_batches())

    def step() -> None:
        trainer.step(next(batches))

    shares = trainer.recipe.phases()
    timings: dict[Phase, Timing] = {}
    compiling = 0.0
    profile = None
    cost: Row = {}
    for phase in shares:
        trainer.set_phase(phase)
        started = time.perf_counter()
        with stage(Console(stderr=True), f"{words} {trainer.recipe.model}"):
            for _ in range(NUM_WARM_UPS.get(device.type, 1)):
                step()
        compiling += time.perf_counter() - started
        trainer.launch_seconds.clear()
        timings[phase] = time_steps(step, device, seconds)
        if not cost:
            cost = cost_of_launch(trainer, step)
        if profiled and profile is None:
            profile = profile_steps(step, device)
    memory = peak.gib()
    row = {**figures(trainer, whole_run(timings, shares), memory), **cost}
    row["compile_seconds"] = round(compiling if trainer.is_compiled else 0.0, 1)
    if len(timings) > 1:
        row["phases"] = [
            {
                **phase._asdict(),
                "share": round(shares[phase], 4),
                "images_per_second": round(batch_size / timing.seconds, 1),
            }
            for phase, timing in timings.items()
        ]
    measured = MeasuredRow({**row, "source": "synthetic"}, profile)
    return RandomImages(measured, timings, memory)


def measure_files(
    trainer: BenchTrainer,
    alone: RandomImages,
    peak: PeakMemory,
    seconds: float,
    profiled: bool,
) -> MeasuredRow:
    """The speed of the step on images from files, in the first phase."""
    device = trainer.device
    phase, without_files = next(iter(alone.timings.items()))
    trainer.set_phase(phase)
    with closing(trainer.stepper.load(trainer.batches())) as batches:

        def step() -> None:
            trainer.step(next(batches))

        with stage(Console(stderr=True), "Starting to read the files"):
            for _ in range(NUM_FED_WARM_UPS.get(device.type, 1)):
                step()
        timing = time_steps(step, device, seconds)
        profile = None
        if profiled or device.type == "cuda":
            profile = profile_steps(step, device, num_steps=20)
    memory = alone.memory
    if memory is not None:  # replayed graphs hide their memory
        memory = max(memory, peak.gib() or 0.0)
    row = figures(trainer, timing, memory)
    rate = trainer.recipe.batch_size / without_files.seconds
    row["synthetic_images_per_second"] = round(rate, 1)
    row["synthetic_share"] = round(without_files.seconds / timing.seconds, 4)
    row["busy_share"] = rounded(profile.busy_share, 4) if profile else None
    return MeasuredRow(row, profile)


def cost_of_launch(trainer: BenchTrainer, step: Step) -> Row:
    """The host's time to launch a step, and its waits for the GPU meanwhile."""
    if trainer.device.type != "cuda":
        return {}
    host = statistics.median(trainer.launch_seconds)
    device_ms, waits = host_cost(step, trainer.device)
    return {
        "host_ms": round(1e3 * host, 3),
        "device_ms": round(device_ms, 3),
        "waits_of_host": waits,
    }


def whole_run(timings: dict[Phase, Timing], shares: dict[Phase, float]) -> Timing:
    """The mean step time of a whole training, over its phases."""
    parts = [shares[phase] for phase in timings]
    rounds = zip(*(timing.rounds for timing in timings.values()), strict=True)
    return Timing(tuple(float(np.dot(parts, seconds)) for seconds in rounds))


def describe(trainer: BenchTrainer, command: str) -> Row:
    """The description of a trainer's rows."""
    recipe = trainer.recipe
    height, width = recipe.image_size
    return {
        "model": recipe.model,
        "mode": "train",
        "image_size": height if height == width else [height, width],
        "batch": recipe.batch_size,
        "precision": trainer.runtime.precision,
        "source": trainer.kind,
        "launch": trainer.launch,
        "path": trainer.path,
        "recipe": recipe.name,
        "torch": torch.__version__,
        "gpu": device_name(trainer.device),
        "command": command,
    }


def loader_options_row(trainer: BenchTrainer) -> Row:
    """The loader options that were given."""
    files, workers = trainer.files, trainer.runtime.workers
    if files is None:
        return {}
    options: Row = {} if workers is None else {"workers": workers}
    return {**options, "resident": True} if files.resident else options


def figures(trainer: BenchTrainer, timing: Timing, memory_gib: float | None) -> Row:
    """The measured numbers of a row."""
    recipe = trainer.recipe
    rate = recipe.batch_size / timing.seconds
    with without_weights():
        model = build_model(recipe, trainer.num_classes)
    fastest = matrix_rate(trainer.device, trainer.runtime.precision or "fp32")
    share = rate * model_flops(model, recipe.image_size, "train") / fastest
    return {
        "images_per_second": round(rate, 1),
        "spread": round(timing.spread, 4),
        "milliseconds": round(1e3 * timing.seconds, 3),
        "peak_memory_gib": rounded(memory_gib),
        # The FLOP count ignores token dropping.
        "matrix_share": round(share, 4) if recipe.token_dropping.keep == 1 else None,
        "matrix_tflops": round(fastest / 1e12, 2),
    }
