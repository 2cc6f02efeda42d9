"""The trainer's own step for benchmarks, on random images or on files."""

import time
from collections import deque
from collections.abc import Generator
from dataclasses import dataclass
from itertools import repeat

import numpy as np
import torch

from t2t.data.batches import LoaderOptions
from t2t.data.sampler import Batch, steps_per_epoch
from t2t.data.sources import FileSource, ParquetSource, ShardSource, Source, Subset
from t2t.data.sources.find_splits import find_splits
from t2t.errors import UserError
from t2t.lab.bench.host_cost import launching
from t2t.training.compile_policy import compiles_at_once
from t2t.training.distributed import World
from t2t.training.forecast.random_batch import random_batch
from t2t.training.initial_state import new_state
from t2t.training.loaders import training_batches
from t2t.training.recipe import Phase, Recipe
from t2t.training.runtime import (
    Runtime,
    captures_steps,
    make_deterministic,
    resolve_runtime,
)
from t2t.training.schedule import lr_factor, set_lr
from t2t.training.step import Stepper
from t2t.training.step_result import PendingStep

KINDS = {FileSource: "jpeg", ShardSource: "pack", ParquetSource: "parquet"}
LONGEST = 1_000_000
"""More steps than any measurement takes."""


@dataclass(frozen=True)
class Files:
    """Files to train from."""

    data: str
    repeat: int | None = None
    """Repetitions of the images per epoch; None fills four batches."""
    resident: bool = False
    """Keep decoded images on the device, as training does with small sets."""


class BenchTrainer:
    """The training loop of a recipe without run folder and validation."""

    def __init__(
        self,
        recipe: Recipe,
        runtime: Runtime,
        device: torch.device,
        files: Files | None = None,
        world: World | None = None,
    ) -> None:
        self.recipe, self.device, self.files = recipe, device, files
        self.world = world or World(rank=0, size=1, device=device)
        self.runtime = resolve_runtime(runtime, self.world)
        self.kind = "synthetic"
        self.num_classes = self.per_epoch = 1000
        if files is not None:
            self.source, self.kind = open_files(files, recipe.batch_size)
            self.num_classes = len(self.source.classes)
            self.per_epoch = steps_per_epoch(len(self.source), recipe.batch_size)

    def start(self) -> None:
        """Builds the model and the stepper."""
        recipe, runtime, world = self.recipe, self.runtime, self.world
        make_deterministic(runtime)
        self.state = new_state(recipe, runtime, world, self.num_classes)
        self.stepper = Stepper(recipe, runtime, world, self.state)
        self.in_flight: deque[PendingStep] = deque()
        self.launch_seconds: list[float] = []
        """The host's time to launch each step."""

    @property
    def path(self) -> str:
        """How the model is parallelized."""
        return self.runtime.parallelism if self.world.is_distributed else "single"

    @property
    def launch(self) -> str:
        """How the trainer runs its step, as in `Case.launch`."""
        if captures_steps(self.runtime, self.world, self.is_compiled):
            return "graph" if self.is_compiled else "eager_graph"
        return "compiled" if self.is_compiled else "eager"

    @property
    def is_compiled(self) -> bool:
        """Whether the first step is compiled."""
        return compiles_at_once(self.runtime, self.world)

    def set_phase(self, phase: Phase) -> None:
        """Switches to a phase of the training."""
        while self.in_flight:
            self.in_flight.popleft().result()
        if phase != self.stepper.phase:
            self.stepper.set_phase(phase)

    def step(self, batch: Batch) -> None:
        """Takes one step like the training loop."""
        epoch = self.state.step / self.per_epoch
        share = lr_factor(self.recipe.schedule, epoch, self.recipe.epochs)
        set_lr(self.state.optimizers, share)
        # Like the loop: one step is always in flight.
        started = time.perf_counter()
        with launching():
            self.in_flight.append(self.stepper.start_step(batch))
        self.launch_seconds.append(time.perf_counter() - started)
        if len(self.in_flight) > 1:
            self.in_flight.popleft().result()

    def synthetic_batches(self) -> Generator[Batch]:
        """Random pixels on the device, the same for each step."""
        size = self.recipe.batch_size // self.world.size
        batch = random_batch(self.recipe, size, self.state.task, self.device)
        yield from repeat(batch, LONGEST)

    def batches(self) -> Generator[Batch]:
        """Batches from the files, once the worker processes have started.

        The training loop starts earlier with threads, which are slower.
        """
        assert self.files is not None
        loader_options = LoaderOptions(
            num_workers=self.runtime.workers,
            resident=self.files.resident,
            threads_first=False,
        )
        opened = training_batches(
            self.recipe,
            self.source,
            self.world,
            loader_options,
            task=self.state.task,
        )
        yield from opened.steps(0, LONGEST)


def open_files(files: Files, batch_size: int) -> tuple[Source, str]:
    """The training images, repeated as needed, and their kind."""
    found = find_splits(files.data)
    split = next((name for name in ("train", "all") if name in found.openers), None)
    if split is None:
        raise UserError(f"{found.title} has no images to train on.")
    source = found.openers[split]()
    kind = next((KINDS[each] for each in KINDS if isinstance(source, each)), "array")
    repeat = files.repeat or -(-4 * batch_size // len(source))
    if repeat > 1:
        source = Subset(source, np.tile(np.arange(len(source)), repeat))
    return source, kind
