"""Evaluation: values of every image of a validation set, over all processes."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from t2t.data.augment.pipeline import normalise
from t2t.data.batches import EvaluationBatches
from t2t.data.sampler import Batch
from t2t.errors import UserError
from t2t.shapes import Images, Labels
from t2t.tasks.base import Task, Views
from t2t.tasks.checks import checked_rows
from t2t.training.distributed import World, all_gather_rows
from t2t.training.sharding import unsharded

Scoring = Callable[[nn.Module, Images, Labels], dict[str, Tensor]]
"""Values of every image, by name, such as `Task.score` gives."""


@dataclass(frozen=True)
class Normalize:
    """Normalizes the pixels of an evaluation batch."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(self, batch: Batch) -> Images:
        return normalise(batch.images, self.mean, self.std)


@torch.no_grad()  # not inference_mode: sharded weights are also used by training
def evaluate(
    model: nn.Module,
    batches: EvaluationBatches,
    normalize: Normalize,
    score: Scoring,
    world: World,
    precision: torch.dtype = torch.float32,
    advance: Callable[[int], None] | None = None,
) -> dict[str, Tensor]:
    """The values of all images, with their `index` in the source and their `label`.

    They are in the order of the source; damaged images are skipped.
    """
    values = evaluate_models(
        {"model": model}, batches, normalize, score, world, precision, advance
    )
    return values["model"]


@torch.no_grad()
def evaluate_models(
    models: Mapping[str, nn.Module],
    batches: Iterable[Batch],
    normalize: Normalize,
    score: Scoring,
    world: World,
    precision: torch.dtype = torch.float32,
    advance: Callable[[int], None] | None = None,
) -> dict[str, dict[str, Tensor]]:
    """The values that `evaluate` gives of each model; images are read once for all."""
    owner = getattr(score, "__self__", None)
    what = "score" if owner is None else f"{type(owner).__name__}.score"
    were_training = {name: model.training for name, model in models.items()}
    rows: dict[str, list[Views]] = {name: [] for name in models}
    for model in models.values():
        model.eval()
    for batch in batches:
        images = normalize(batch)
        index = torch.where(batch.valid, batch.indices, -1)
        for name, model in models.items():
            with autocast(world.device, precision):
                values = score(model, images, batch.labels)
            values = checked_rows(what, values, len(batch.labels))
            rows[name].append({"index": index, "label": batch.labels, **values})
        if advance is not None:
            advance(len(batch.valid) * world.size)
    for name, model in models.items():
        model.train(were_training[name])
    return {name: in_order(parts, world) for name, parts in rows.items()}


def score_models(
    task: Task,
    models: Mapping[str, nn.Module],
    batches: Iterable[Batch],
    normalize: Normalize,
    world: World,
    precision: torch.dtype,
    advance: Callable[[int], None] | None = None,
) -> dict[str, dict[str, Tensor]]:
    """The task's values of each model, whose weights may be sharded."""
    task.eval()
    with ExitStack() as stack:
        for model in (task, *models.values()):
            stack.enter_context(unsharded(model))
        return evaluate_models(
            models, batches, normalize, task.score, world, precision, advance
        )


def in_order(parts: list[Views], world: World) -> Views:
    """The values of all processes' batches in the order of the source."""
    found = {
        name: all_gather_rows(torch.cat([part[name] for part in parts]), world).cpu()
        for name in parts[0]
    }
    order = found["index"].argsort()
    order = order[found["index"][order] >= 0]
    if not len(order):
        raise UserError("No image could be evaluated: all of them are damaged.")
    return {name: value[order] for name, value in found.items()}


def autocast(device: torch.device, precision: torch.dtype) -> torch.autocast:
    """Autocast to a precision; float32 turns it off."""
    return torch.autocast(
        device.type,
        dtype=None if precision is torch.float32 else precision,
        enabled=precision is not torch.float32,
    )
