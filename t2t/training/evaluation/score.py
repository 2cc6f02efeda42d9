"""The score of a classifier on a whole validation set."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from t2t.tasks.classify import macro_accuracy
from t2t.training.evaluation.calibration import Calibration, calibrate


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
    confidence: Float[Tensor, " images"]
    """The probability of the predicted class."""
    label_probability: Float[Tensor, " images"]
    """The probability of the image's own class."""
    calibration: Calibration

    @classmethod
    def of(cls, values: dict[str, Tensor], num_classes: int) -> "Score":
        """The score from the values that `evaluate` gives of a classifier.

        Their `logits`, if they are there, give the temperature and are not kept.
        """
        columns = [values[name] for name in ("index", "label", "predicted")]
        labels, confidence = values["label"], values["confidence"]
        is_hit = labels == values["predicted"]
        return cls(
            top1=values["top1"].double().mean().item(),
            top5=values["top5"].double().mean().item(),
            loss=values["val_loss"].double().mean().item(),
            num_classes=num_classes,
            predictions=torch.stack(columns, 1),
            confidence=confidence,
            label_probability=values["label_probability"],
            calibration=calibrate(confidence, is_hit, labels, values.get("logits")),
        )

    @property
    def num_images(self) -> int:
        """How many images were evaluated."""
        return len(self.predictions)

    @property
    def macro_accuracy(self) -> float:
        """The mean of the classes' recalls, in per cent."""
        return macro_accuracy(self.predictions[:, 1], self.predictions[:, 2])

    @property
    def table(self) -> dict[str, Tensor]:
        """A column by name for what is known of each image.

        `index` is its number in the source.
        """
        index, label, predicted = self.predictions.unbind(1)
        return {
            "index": index,
            "label": label,
            "predicted": predicted,
            "confidence": self.confidence,
            "label_probability": self.label_probability,
        }

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
