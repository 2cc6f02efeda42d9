"""Evaluates a trained model on the images of a source."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch

from t2t.data.batches import EvaluationBatches, LoaderOptions, evaluation_batches
from t2t.data.crops import CenterCrop
from t2t.data.decoding.damage import DEFAULT_MAX_DAMAGED, Damage, damage_limit
from t2t.data.decoding.headers import DEFAULT_MAX_PIXELS
from t2t.data.sources import Source
from t2t.errors import choose
from t2t.models.trained import TrainedModel
from t2t.tasks.base import Views
from t2t.training.distributed import World, all_gather_union, check_same_on_all
from t2t.training.evaluation.evaluate import Normalize, Scoring, evaluate
from t2t.training.runtime import PRECISIONS, default_precision

Progress = Callable[[int, int], None]
"""Called with the number of images done and their total."""


def no_progress(done: int, total: int) -> None:
    """Shows nothing."""


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions:
    """How images are evaluated; only the precision can change their values."""

    batch_size: int = 256
    device: str | None = None
    """cuda, mps or cpu; None takes the best available."""
    precision: str | None = None
    """bf16, fp16 or fp32; None is that of training on the device."""
    max_pixels: int = DEFAULT_MAX_PIXELS
    max_damaged: str = DEFAULT_MAX_DAMAGED

    def precision_on(self, device: torch.device) -> str:
        """The precision, or the default of a device; checks that it is known."""
        precision = self.precision or default_precision(device)
        choose("precision", precision, PRECISIONS)
        return precision


class SourceValues(NamedTuple):
    """The values of all images of a source."""

    values: Views
    damaged: tuple[str, ...]
    images_per_second: float | None
    """Measured from the second batch on; None if there is only one."""


def evaluate_source(
    trained: TrainedModel,
    source: Source,
    score: Scoring,
    world: World,
    options: EvaluateOptions,
    progress: Progress,
) -> SourceValues:
    """The values that a score gives of all images; all processes share the work."""
    precision = PRECISIONS[options.precision_on(world.device)]
    damage = Damage(damage_limit(options.max_damaged, len(source)))
    batches = source_batches(trained, source, world, options, damage)
    throughput = Throughput(world, len(source), progress)
    values = evaluate(
        trained.model.to(world.device),
        batches,
        Normalize(trained.mean, trained.std),
        score,
        world,
        precision,
        throughput.advance,
    )
    rate = throughput.images_per_second()
    return SourceValues(values, all_gather_union(damage.names, world), rate)


def source_batches(
    trained: TrainedModel,
    source: Source,
    world: World,
    options: EvaluateOptions,
    damage: Damage,
) -> EvaluationBatches:
    """All images once, with the preprocessing of the model."""
    batch_size = min(options.batch_size, len(source))
    shared = {
        "model": trained.name,
        "classes": dict(enumerate(trained.class_names)),
        "num_images": len(source),
        "batch_size": batch_size,
    }
    check_same_on_all(world, shared)
    return evaluation_batches(
        source,
        batch_size=batch_size,
        crop=CenterCrop(size=trained.image_size, fraction=trained.crop_fraction),
        device=world.device,
        rank=world.rank,
        world_size=world.size,
        channels=trained.channels,
        damage=damage,
        loader_options=LoaderOptions(max_pixels=options.max_pixels),
    )


class Throughput:
    """Counts images, and times the batches after the first, which warms up."""

    def __init__(self, world: World, total: int, progress: Progress) -> None:
        self.world, self.total, self.progress = world, total, progress
        self.started: float | None = None
        self.num_first = self.num_done = 0

    def advance(self, num_images: int) -> None:
        """Counts a batch."""
        self.num_done += num_images
        if self.world.is_main:
            # The last batch is padded.
            self.progress(min(self.num_done, self.total), self.total)
        if self.started is None:
            self.wait()
            self.started = time.perf_counter()
            self.num_first = num_images

    def images_per_second(self) -> float | None:
        """The rate of all batches but the first."""
        self.wait()
        if self.started is None or self.num_done == self.num_first:
            return None
        seconds = time.perf_counter() - self.started
        return (self.num_done - self.num_first) / seconds

    def wait(self) -> None:
        """Waits for the device."""
        if self.world.device.type == "cuda":
            torch.cuda.synchronize(self.world.device)
