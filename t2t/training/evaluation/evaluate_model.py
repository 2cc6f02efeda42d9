"""Evaluates a trained model on its own or other data."""

import os
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from t2t.data.decoding.damage import DEFAULT_MAX_DAMAGED
from t2t.data.decoding.headers import DEFAULT_MAX_PIXELS
from t2t.data.label_config import NO_LABEL_CONFIG, LabelConfig
from t2t.errors import UserError
from t2t.models.trained import TrainedModel, load_trained
from t2t.shapes import Images, Labels
from t2t.tasks.base import Views
from t2t.tasks.class_matching import match_classes, relabelled
from t2t.tasks.classify import flipped_logits, score_logits
from t2t.training.distributed import World, init_distributed
from t2t.training.evaluation.calibration import MAX_LOGITS
from t2t.training.evaluation.evaluate import Scoring
from t2t.training.evaluation.evaluate_source import (
    EvaluateOptions,
    Progress,
    evaluate_source,
    no_progress,
)
from t2t.training.evaluation.evaluation_data import EvaluationData, find_data
from t2t.training.evaluation.measured import Measured
from t2t.training.evaluation.real_labels import RealLabels
from t2t.training.evaluation.report import EvalReport
from t2t.training.evaluation.score import Score
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
    progress: Progress = no_progress,
) -> EvalReport | None:
    """Evaluates a run or weights on their own or other data.

    Under torchrun all processes share the work; the main process gets the report, the
    others None. `flip` averages the probabilities of each image and its mirror image,
    `also` gives more values of every image, which the report keeps.
    `progress` is called with the number of images done and their total.
    """
    options = EvaluateOptions(
        batch_size=batch_size,
        device=device,
        precision=precision,
        max_pixels=max_pixels,
        max_damaged=max_damaged,
    )
    with init_distributed(device) as world, use_free_cores(world.device):
        options.precision_on(world.device)
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
            options,
            progress,
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
    options: EvaluateOptions,
    progress: Progress,
) -> Measured | None:
    """The values that a score gives of all images; None but in the main process."""
    source = selected.source
    found = evaluate_source(trained, source, score, world, options, progress)
    if not world.is_main:
        return None
    return Measured(
        trained=trained,
        data=selected.where,
        split=selected.split,
        source=source,
        values=found.values,
        images_per_second=found.images_per_second,
        device=device_name(world),
        precision=options.precision_on(world.device),
        batch_size=min(options.batch_size, len(source)),
        damaged=found.damaged,
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


def device_name(world: World) -> str:
    """The names of the devices."""
    kind = world.device.type
    name = torch.cuda.get_device_name(world.device) if kind == "cuda" else kind
    return f"{world.size} × {name}" if world.size > 1 else name
