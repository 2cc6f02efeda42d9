"""A run: all the state that changes while training, and its folder."""

import copy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.optim import Optimizer as TorchOptimizer

from t2t.training.recipe import Average


@dataclass
class Run:
    """Model, average, optimizers and counters: what a checkpoint holds."""

    model: nn.Module
    """As it is trained: the plain model, or spread over processes."""
    average: nn.Module | None
    optimizers: list[TorchOptimizer]
    scaler: torch.amp.GradScaler
    step: int = 0
    num_skipped: int = 0
    """Steps left out since their gradient was not finite."""
    best: dict[str, float] = field(default_factory=dict)

    @property
    def plain(self) -> nn.Module:
        """The model without what spreads it over processes."""
        inner = getattr(self.model, "module", self.model)
        assert isinstance(inner, nn.Module)
        return inner

    @property
    def delivered(self) -> nn.Module:
        """The averaged model, or the raw one where no average is kept."""
        return self.plain if self.average is None else self.average

    def state(self) -> dict[str, Any]:
        """All of it, by name, as tensors and numbers."""
        state: dict[str, Any] = {
            "model": self.plain.state_dict(),
            "optimizers": {
                str(number): get_optimizer_state_dict(
                    self.plain, optimizer, options=OPTIONS
                )
                for number, optimizer in enumerate(self.optimizers)
            },
            "scaler": self.scaler.state_dict(),
            "step": self.step,
            "num_skipped": self.num_skipped,
            "best": dict(self.best),
        }
        if self.average is not None:
            state["average"] = self.average.state_dict()
        return state

    def restore(self, state: dict[str, Any]) -> None:
        """Takes back what `state` gave."""
        self.plain.load_state_dict(state["model"])
        for number, optimizer in enumerate(self.optimizers):
            set_optimizer_state_dict(
                self.plain, optimizer, state["optimizers"][str(number)], options=OPTIONS
            )
        if self.average is not None:
            self.average.load_state_dict(state["average"])
        self.scaler.load_state_dict(state["scaler"])
        self.step = state["step"]
        self.num_skipped = state["num_skipped"]
        self.best = dict(state["best"])


OPTIONS = StateDictOptions(strict=True)


def new_average(model: nn.Module, settings: Average) -> nn.Module | None:
    """A copy of the model to hold the running average of its weights."""
    if settings.decay == 0:
        return None
    return copy.deepcopy(model).eval().requires_grad_(False)


@torch.no_grad()
def update_average(run: Run, settings: Average) -> None:
    """Moves the average towards the weights as they are after the run's step."""
    if run.average is None:
        return
    share = 1 - settings.decay_at(run.step)
    own: list[Tensor] = list(run.average.parameters())
    torch._foreach_lerp_(own, list(run.plain.parameters()), share)
    for kept, now in zip(run.average.buffers(), run.plain.buffers(), strict=True):
        kept.copy_(now)
