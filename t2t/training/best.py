"""The best evaluation of a run so far, with its weights: part of the train state."""

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from t2t.models.shards import is_dtensor
from t2t.tasks import Metric

PREFIX = "best/"
"""Prefix of the weights' names in a checkpoint."""

NUMBERS = ("row", "is_latest", "improved_epoch", "num_since")


@dataclass
class BestEvaluation:
    """Scores and weights of the evaluation with the best primary metric.

    Of equal ones, the latest: it has seen more images.
    """

    row: dict[str, Any] = field(default_factory=dict)
    """Its row in the metrics: `epoch`, and the metrics by name."""
    weights: dict[str, Tensor] = field(default_factory=dict)
    """The final model's at that time: on the CPU, or on the device if sharded."""
    is_latest: bool = True
    """Whether no evaluation came after it."""
    improved_epoch: int = 0
    """When the primary metric was as good for the first time."""
    num_since: int = 0
    """Evaluations since then, none of which was better."""

    def update(self, metric: Metric, row: dict[str, Any], model: nn.Module) -> bool:
        """Keeps an evaluation if it is as good as the best so far; returns whether."""
        value, best = row[metric.name], self.row.get(metric.name)
        if not self.row or is_better(metric, value, best):
            self.improved_epoch, self.num_since = row["epoch"], 0
        else:
            self.num_since += 1
        self.is_latest = not (self.row and is_better(metric, best, value))
        if not self.is_latest:
            return False
        self.row = row
        self.weights = {name: kept(each) for name, each in model.state_dict().items()}
        return True

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint holds of it, beside `numbers`."""
        return {f"{PREFIX}{name}": tensor for name, tensor in self.weights.items()}

    def numbers(self) -> dict[str, Any]:
        """What a checkpoint holds of it, beside `tensors`."""
        return {name: getattr(self, name) for name in NUMBERS}

    def restore(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        """Restores the state of a checkpoint."""
        self.weights = {
            name.removeprefix(PREFIX): tensor
            for name, tensor in tensors.items()
            if name.startswith(PREFIX)
        }
        for name in NUMBERS:
            setattr(self, name, numbers[name])


def is_better(metric: Metric, value: float | None, best: float | None) -> bool:
    """Whether a value is better than another; None is a value that is not finite."""
    if value is None or best is None:
        return value is not None
    return value > best if metric.higher_is_better else value < best


def kept(tensor: Tensor) -> Tensor:
    """A copy that training does not change, outside the device's memory if possible."""
    tensor = tensor.detach()
    # A shard stays where the processes can gather it.
    return tensor.clone() if is_dtensor(tensor) else tensor.to("cpu", copy=True)
