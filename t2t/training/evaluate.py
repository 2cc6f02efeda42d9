"""How good a model is: accuracy and loss over every image of a source once."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from t2t.data.augment.pipeline import normalise
from t2t.data.batches import EvaluationBatches
from t2t.data.order import Batch
from t2t.errors import UserError
from t2t.shapes import Images
from t2t.training.parallel import Processes, sum_over_all


@dataclass(frozen=True)
class Score:
    """What evaluation found."""

    top1: float
    """Per cent of images whose label is the model's first guess."""
    top5: float
    loss: float
    num_images: int
    confusion: Tensor
    """Images by true class (rows) and predicted class (columns)."""


@dataclass(frozen=True)
class Preparation:
    """What happens to evaluation pixels before a model sees them."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(self, batch: Batch) -> Images:
        return normalise(batch.images, self.mean, self.std)


@torch.no_grad()  # not inference_mode: sharded weights are gathered into what trains
def evaluate(
    model: nn.Module,
    batches: EvaluationBatches,
    prepare: Preparation,
    num_classes: int,
    team: Processes,
    precision: torch.dtype = torch.float32,
    advance: Callable[[int], None] | None = None,
) -> Score:
    """The score of a model over all processes' shares of the images."""
    was_training = model.training
    model.eval()
    device = team.device
    confusion = torch.zeros(num_classes, num_classes, dtype=torch.int64, device=device)
    totals = torch.zeros(4, device=device)
    for batch in batches:
        with autocast(device, precision):
            logits = model(prepare(batch)).float()
        valid = batch.valid
        losses = F.cross_entropy(logits, batch.labels, reduction="none")
        order = logits.topk(min(5, num_classes), dim=1).indices
        hits = order == batch.labels[:, None]
        numbers = [hits[:, 0] & valid, hits.any(1) & valid, losses * valid, valid]
        totals += torch.stack([number.sum() for number in numbers])
        pairs = batch.labels * num_classes + order[:, 0]
        ones = valid.to(torch.int64)
        confusion.view(-1).scatter_add_(0, pairs, ones)
        if advance is not None:
            advance(len(valid) * team.world_size)
    model.train(was_training)
    first, five, loss, count = sum_over_all(totals, team).tolist()
    if count == 0:
        raise UserError("No image could be evaluated: all of them are damaged.")
    return Score(
        top1=100 * first / count,
        top5=100 * five / count,
        loss=loss / count,
        num_images=int(count),
        confusion=sum_over_all(confusion, team).cpu(),
    )


def autocast(device: torch.device, precision: torch.dtype) -> torch.autocast:
    """Computes products in a precision; float32 leaves everything as it is."""
    return torch.autocast(
        device.type,
        dtype=None if precision is torch.float32 else precision,
        enabled=precision is not torch.float32,
    )
