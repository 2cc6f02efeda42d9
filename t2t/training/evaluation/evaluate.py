"""How good a model is: accuracy and loss over every image of a source once."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Int64
from torch import Tensor, nn

from t2t.data.augment.pipeline import normalise
from t2t.data.batches import EvaluationBatches
from t2t.data.sampler import Batch
from t2t.errors import UserError
from t2t.shapes import Images
from t2t.training.distributed import World, gather_over_all, sum_over_all


@dataclass(frozen=True)
class Score:
    """What evaluation found."""

    top1: float
    """Per cent of images whose label is the model's first guess."""
    top5: float
    loss: float
    num_images: int
    num_classes: int
    guesses: Int64[Tensor, "images 3"]
    """Each image's number in the source, its class, and what it is taken for."""

    @property
    def confusion(self) -> Tensor:
        """Images by true class (rows) and predicted class (columns).

        The table is sparse: of many classes, a dense one would take gigabytes.
        """
        shape = (self.num_classes, self.num_classes)
        ones = torch.ones(len(self.guesses), dtype=torch.int64)
        pairs = self.guesses[:, 1:].T
        table = torch.sparse_coo_tensor(pairs, ones, shape, check_invariants=True)
        return table.coalesce()


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
    world: World,
    precision: torch.dtype = torch.float32,
    advance: Callable[[int], None] | None = None,
) -> Score:
    """The score of a model over all processes' shares of the images."""
    was_training = model.training
    model.eval()
    device = world.device
    seen: list[Tensor] = []
    totals = torch.zeros(4, device=device)
    for batch in batches:
        with autocast(device, precision):
            logits = model(prepare(batch)).float()
        valid = batch.valid
        losses = F.cross_entropy(logits, batch.labels, reduction="none")
        order = logits.topk(min(5, num_classes), dim=1).indices
        hits = order == batch.labels[:, None]
        parts = [hits[:, 0] & valid, hits.any(1) & valid, losses * valid, valid]
        totals += torch.stack([part.sum() for part in parts])
        numbers = torch.where(valid, batch.indices, -1)
        seen.append(torch.stack([numbers, batch.labels, order[:, 0]], 1))
        if advance is not None:
            advance(len(valid) * world.size)
    model.train(was_training)
    first, five, loss, count = sum_over_all(totals, world).tolist()
    if count == 0:
        raise UserError("No image could be evaluated: all of them are damaged.")
    guesses = gather_over_all(torch.cat(seen), world).cpu()
    guesses = guesses[guesses[:, 0].argsort()]
    return Score(
        top1=100 * first / count,
        top5=100 * five / count,
        loss=loss / count,
        num_images=int(count),
        num_classes=num_classes,
        guesses=guesses[guesses[:, 0] >= 0],
    )


def autocast(device: torch.device, precision: torch.dtype) -> torch.autocast:
    """Computes products in a precision; float32 leaves everything as it is."""
    return torch.autocast(
        device.type,
        dtype=None if precision is torch.float32 else precision,
        enabled=precision is not torch.float32,
    )
