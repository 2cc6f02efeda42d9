"""Evaluates a trained model on its own or other data."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from t2t.data.batches import EvaluationBatches, LoaderOptions, evaluation_batches
from t2t.data.crops import CenterCrop
from t2t.data.decoding.damage import DEFAULT_MAX_DAMAGED, Damage, damage_limit
from t2t.data.decoding.headers import DEFAULT_MAX_PIXELS
from t2t.data.label_config import NO_LABEL_CONFIG, LabelConfig
from t2t.data.sources import Source
from t2t.errors import UserError, choose
from t2t.models.trained import TrainedModel, load_trained
from t2t.shapes import Images, Labels
from t2t.tasks.base import Views
from t2t.tasks.class_matching import match_classes, relabelled
from t2t.tasks.classify import flipped_logits, score_logits
from t2t.training.distributed import (
    World,
    all_gather_union,
    check_same_on_all,
    init_distributed,
)
from t2t.training.evaluation.calibration import MAX_LOGITS
from t2t.training.evaluation.evaluate import Normalize, Scoring, evaluate
from t2t.training.evaluation.evaluation_data import EvaluationData, find_data
from t2t.training.evaluation.measured import Measured
from t2t.training.evaluation.real_labels import RealLabels
from t2t.training.evaluation.report import EvalReport
from t2t.training.evaluation.score import Score
from t2t.training.runtime import PRECISIONS, default_precision
from t2t.training.threads import use_free_cores


def evaluate_model(
    path: str | os.PathLike[str] | TrainedModel,
    *,
    data: str | Path | None = None,
    label_config: LabelConfig = NO_LABEL_CONFIG,
    split: str | None = None,
    batch_size: int = 256,
    device: str | None = None,
    precision: str | None = None,
    model: str | None = None,
    real: bool = False,
    flip: bool = False,
    max_damaged: str = DEFAULT_MAX_DAMAGED,
    max_pixels: int = DEFAULT_MAX_PIXELS,
    also: Scoring | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> EvalReport | None:
    """Evaluates a run or weights on their own or other data.

    Under torchrun all processes share the work; the main process gets the report, the
    others None. `flip` averages the probabilities of each image and its mirror image,
    `also` gives more values of every image, which the report keeps.
    `progress` is called with the number of images done and their total.
    """
    with init_distributed(device) as world, use_free_cores(world.device):
        precision = precision or default_precision(world.device)
        choose("precision", precision, PRECISIONS)
        trained = as_trained(path, model)
        found = find_data(trained, data, split, label_config)
        check_one_label(trained, found)
        selected = with_classes_of(trained, found)
        source = selected.source
        real_labels = (
            RealLabels(source, trained.class_names, selected.where) if real else None
        )
        num_classes = len(trained.class_names)
        has_room = len(source) * num_classes <= MAX_LOGITS
        measured = measure(
            trained,
            selected,
            Scorer(flip=flip, keeps_logits=has_room, also=also),
            world,
            precision=precision,
            batch_size=batch_size,
            max_damaged=max_damaged,
            max_pixels=max_pixels,
            progress=progress,
        )
        if measured is None:
            return None
        score = Score.of(measured.values, num_classes)
        measured.values.pop("logits", None)  # large, and used by now
        return EvalReport(
            **vars(measured),
            score=score,
            real=None if real_labels is None else real_labels.score(score.predictions),
            flip=flip,
        )


def with_classes_of(trained: TrainedModel, selected: EvaluationData) -> EvaluationData:
    """The same images with the class numbers of a model, and all notes on them."""
    classes = selected.source.classes
    numbers, notes = match_classes(classes, trained.class_names, selected.where)
    source = relabelled(selected.source, numbers, trained.class_names)
    all_notes = (*trained.notes, *selected.notes, *selected.source.notes, *notes)
    return replace(selected, source=source, notes=all_notes)


def measure(
    trained: TrainedModel,
    selected: EvaluationData,
    score: Scoring,
    world: World,
    *,
    precision: str,
    batch_size: int,
    max_damaged: str,
    max_pixels: int,
    progress: Callable[[int, int], None],
) -> Measured | None:
    """The values that a score gives of all images; None but in the main process."""
    source = selected.source
    damage = Damage(damage_limit(max_damaged, len(source)))
    batch_size = min(batch_size, len(source))
    batches = open_batches(trained, source, batch_size, world, damage, max_pixels)
    watch = Stopwatch(world, len(source), progress)
    values = evaluate(
        trained.model.to(world.device),
        batches,
        Normalize(trained.mean, trained.std),
        score,
        world,
        PRECISIONS[precision],
        watch.advance,
    )
    rate = watch.images_per_second()
    damaged = all_gather_union(damage.names, world)
    if not world.is_main:
        return None
    return Measured(
        trained=trained,
        data=selected.where,
        split=selected.split,
        source=source,
        values=values,
        images_per_second=rate,
        device=device_name(world),
        precision=precision,
        batch_size=batch_size,
        damaged=damaged,
        notes=selected.notes,
    )


@dataclass(frozen=True)
class Scorer:
    """Scores a batch as the task of a classifier does."""

    flip: bool
    """Whether the probabilities of mirror images are averaged."""
    keeps_logits: bool
    """Whether `logits` are among the values."""
    also: Scoring | None = None
    """Gives more values of every image."""

    def __call__(self, model: nn.Module, images: Images, labels: Labels) -> Views:
        logits = flipped_logits(model, images) if self.flip else model(images).float()
        values = score_logits(logits, labels)
        if self.keeps_logits:
            values["logits"] = logits
        more = {} if self.also is None else self.also(model, images, labels)
        return {**values, **more}


def as_trained(
    path: str | os.PathLike[str] | TrainedModel, model: str | None = None
) -> TrainedModel:
    """The model of a run or a file, or one that is loaded already."""
    return path if isinstance(path, TrainedModel) else load_trained(path, model=model)


def check_one_label(trained: TrainedModel, selected: EvaluationData) -> None:
    """Refuses several labels per image, for a score of predicted classes."""
    if trained.is_multilabel:
        raise UserError(
            f"{trained.path} predicts several labels per image, which "
            "`evaluate_multilabel` scores."
        )
    if selected.source.is_multilabel:
        raise UserError(
            f"{selected.where} gives images several labels, and {trained.path} "
            "predicts one of each: evaluate it on images with one label, or train with "
            "--set task=multilabel."
        )


def open_batches(
    trained: TrainedModel,
    source: Source,
    batch_size: int,
    world: World,
    damage: Damage,
    max_pixels: int,
) -> EvaluationBatches:
    """All images once, with the preprocessing of the model."""
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
        loader_options=LoaderOptions(max_pixels=max_pixels),
    )


class Stopwatch:
    """Counts images, and times the batches after the first, which warms up."""

    def __init__(
        self, world: World, total: int, progress: Callable[[int, int], None]
    ) -> None:
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


def device_name(world: World) -> str:
    """The names of the devices."""
    kind = world.device.type
    name = torch.cuda.get_device_name(world.device) if kind == "cuda" else kind
    return f"{world.size} × {name}" if world.size > 1 else name
