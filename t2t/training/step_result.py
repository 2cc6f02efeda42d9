"""The numbers of a training step, which the device may still be computing."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from t2t.training.state import TrainState


class Requests(NamedTuple):
    """Requests of a process to the loop, which travel with a step to all processes."""

    stop: bool = False
    save: bool = False
    """Write a checkpoint."""

    def __or__(self, other: "Requests") -> "Requests":
        return Requests(self.stop or other.stop, self.save or other.save)


class StepResult(NamedTuple):
    """The numbers of a finished step."""

    step: int
    """Counted from 1."""
    numbers: dict[str, float]
    """The task's numbers, such as `loss`."""
    gradient_norm: float
    lr: float
    applied: bool
    """False if the loss or the gradient was not finite, so nothing was changed."""
    requests: Requests = Requests()
    """The requests of all processes before the step."""

    @property
    def loss(self) -> float:
        """The loss."""
        return self.numbers["loss"]


class PendingStep:
    """A step that the device may still be computing."""

    def __init__(
        self, state: TrainState, values: Tensor, names: list[str], lr: float
    ) -> None:
        self.state, self.step, self.names, self.lr = state, state.step, names, lr
        self.done: torch.cuda.Event | None = None
        self.values = values
        if values.is_cuda:
            self.values = torch.empty(values.shape, pin_memory=True)
            self.values.copy_(values, non_blocking=True)
            self.done = torch.cuda.Event()
            self.done.record()

    def result(self) -> StepResult:
        """Waits for the step, and counts it if it was skipped; call it once."""
        if self.done is not None:
            self.done.synchronize()
        loss, norm, stop, save, *others = self.values.tolist()
        applied = math.isfinite(loss) and math.isfinite(norm)
        state = self.state
        state.num_skipped += not applied
        state.num_skipped_in_a_row = 0 if applied else state.num_skipped_in_a_row + 1
        numbers = dict(zip(self.names, (loss, *others), strict=True))
        requests = Requests(stop > 0, save > 0)
        return StepResult(self.step, numbers, norm, self.lr, applied, requests)
