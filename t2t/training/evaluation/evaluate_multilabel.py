"""Evaluates a model that predicts several labels per image."""

import os
from pathlib import Path

import torch

from t2t.data.decoding.damage import DEFAULT_MAX_DAMAGED
from t2t.data.decoding.headers import DEFAULT_MAX_PIXELS
from t2t.data.label_config import NO_LABEL_CONFIG, LabelConfig
from t2t.data.sources import Source
from t2t.data.sources.label_sets import sets_of_classes
from t2t.errors import UserError
from t2t.models.trained import TrainedModel
from t2t.tasks.multilabel import index_table, multi_hot, score_multilabel
from t2t.tasks.multilabel_scores import MultilabelScores
from t2t.training.distributed import init_distributed
from t2t.training.evaluation.evaluate import Scoring
from t2t.training.evaluation.evaluate_model import as_trained, measure, with_classes_of
from t2t.training.evaluation.evaluate_source import (
    EvaluateOptions,
    Progress,
    no_progress,
)
from t2t.training.evaluation.evaluation_data import find_data
from t2t.training.evaluation.multilabel_report import MultilabelReport
from t2t.training.threads import use_free_cores


def evaluate_multilabel(
    path: str | os.PathLike[str] | TrainedModel,
    *,
    data: str | Path | None = None,
    label_config: LabelConfig = NO_LABEL_CONFIG,
    split: str | None = None,
    batch_size: int = 256,
    device: str | None = None,
    precision: str | None = None,
    max_damaged: str = DEFAULT_MAX_DAMAGED,
    max_pixels: int = DEFAULT_MAX_PIXELS,
    progress: Progress = no_progress,
) -> MultilabelReport | None:
    """As `evaluate_model`, for a model that predicts several labels per image."""
    options = EvaluateOptions(
        batch_size=batch_size,
        device=device,
        precision=precision,
        max_pixels=max_pixels,
        max_damaged=max_damaged,
    )
    with init_distributed(device) as world, use_free_cores(world.device):
        options.precision_on(world.device)
        trained = as_trained(path)
        if not trained.is_multilabel:
            raise UserError(
                f"{trained.path} predicts one class per image, which `evaluate_model` "
                "scores."
            )
        found = find_data(trained, data, split, label_config)
        selected = with_classes_of(trained, found)
        table = label_table(selected.source)
        num_classes = len(trained.class_names)
        measured = measure(
            trained,
            selected,
            scoring(table.to(world.device), num_classes),
            world,
            options,
            progress,
        )
        if measured is None:
            return None
        values = measured.values
        targets = multi_hot(table, values["label"], num_classes)
        return MultilabelReport(
            **vars(measured),
            scores=MultilabelScores.of(values["probabilities"], targets),
        )


def label_table(source: Source) -> torch.Tensor:
    """The label sets of a source; with one label per image, a set for each class."""
    sets = source.label_sets
    return index_table(sets_of_classes(len(source.classes)) if sets is None else sets)


def scoring(table: torch.Tensor, num_classes: int) -> Scoring:
    """A score: the loss and the probabilities of each image."""
    return lambda model, images, labels: score_multilabel(
        model, images, multi_hot(table, labels, num_classes)
    )
