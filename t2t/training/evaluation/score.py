"""The score of a classifier on a whole validation set."""

from dataclasses import dataclass

import torch
from jaxtyping import Int64
from torch import Tensor


@dataclass(frozen=True)
class Score:
    """Accuracies, loss and predictions."""

    top1: float
    """Per cent of images whose label is the first guess."""
    top5: float
    loss: float
    num_classes: int
    predictions: Int64[Tensor, "images 3"]
    """Each image's number in the source, its class, and the predicted class."""

    @classmethod
    def of(cls, values: dict[str, Tensor], num_classes: int) -> "Score":
        """The score from the values that `evaluate` gives of a classifier."""
        columns = [values[name] for name in ("index", "label", "predicted")]
        return cls(
            top1=values["top1"].double().mean().item(),
            top5=values["top5"].double().mean().item(),
            loss=values["val_loss"].double().mean().item(),
            num_classes=num_classes,
            predictions=torch.stack(columns, 1),
        )

    @property
    def num_images(self) -> int:
        """How many images were evaluated."""
        return len(self.predictions)

    @property
    def confusion(self) -> Tensor:
        """Images by true class (rows) and predicted class (columns).

        The table is sparse: a dense one of many classes would take gigabytes.
        """
        shape = (self.num_classes, self.num_classes)
        ones = torch.ones(len(self.predictions), dtype=torch.int64)
        pairs = self.predictions[:, 1:].T
        table = torch.sparse_coo_tensor(pairs, ones, shape, check_invariants=True)
        return table.coalesce()
