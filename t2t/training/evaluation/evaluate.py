"""Evaluation: values of every image of a validation set, over all processes."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from t2t.data.augment.pipeline import normalise
from t2t.data.batches import EvaluationBatches
from t2t.data.sampler import Batch
from t2t.errors import UserError
from t2t.shapes import Images, Labels
from t2t.tasks.checks import checked_rows
from t2t.training.distributed import World, all_gather_rows

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
    owner = getattr(score, "__self__", None)
    what = "score" if owner is None else f"{type(owner).__name__}.score"
    was_training = model.training
    model.eval()
    rows: dict[str, list[Tensor]] = {}
    for batch in batches:
        with autocast(world.device, precision):
            values = score(model, normalize(batch), batch.labels)
        values = checked_rows(what, values, len(batch.labels))
        index = torch.where(batch.valid, batch.indices, -1)
        for name, value in {"index": index, "label": batch.labels, **values}.items():
            rows.setdefault(name, []).append(value)
        if advance is not None:
            advance(len(batch.valid) * world.size)
    model.train(was_training)
    found = {
        name: all_gather_rows(torch.cat(parts), world).cpu()
        for name, parts in rows.items()
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
