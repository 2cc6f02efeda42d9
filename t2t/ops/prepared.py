"""What is computed from weights alone, kept while they stay as they are."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook

from t2t.ops.availability import needs_torchs_own

Value = TypeVar("Value")


class Preparations:
    """Results of functions of weights, each made at first use and after a change.

    What is written past autograd, through a weight's `.data`, is no change it can see.
    """

    def __init__(self) -> None:
        self._kept: dict[Any, tuple[Sequence[Tensor], list[int], Any]] = {}
        watch_optimizers()

    def __reduce__(self) -> tuple[type["Preparations"], tuple[()]]:
        """A copy begins empty: addresses are not its own, and MKL's copies stay."""
        return type(self), ()

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Lets `prepared` take its results from here."""
        token = _IN_USE.set(self)
        try:
            yield
        finally:
            _IN_USE.reset(token)

    def get(
        self, make: Callable[..., Value], weights: Sequence[Tensor], *settings: Any
    ) -> Value:
        """What `make(weights, *settings)` gives, from before where it still holds."""
        if not all(tells_changes(weight) for weight in weights):
            return make(weights, *settings)
        places = tuple(
            (weight.data_ptr(), weight.shape, weight.stride()) for weight in weights
        )
        versions = [_STEPS.count, *(weight._version for weight in weights)]
        known = self._kept.get((make, places, settings))
        if known is None or known[1] != versions:
            # Their memory is kept too, so that no other weights can take its addresses:
            # by tensors of its own, since a parameter can be given other memory.
            held = [weight.detach() for weight in weights]
            known = held, versions, make(weights, *settings)
            self._kept[make, places, settings] = known
        value: Value = known[2]
        return value


class Steps:
    """How many steps optimizers have taken since somebody began to watch them."""

    count = 0


_STEPS = Steps()


@cache
def watch_optimizers() -> None:
    """Counts steps from now on: fused ones write weights past the weights' count."""

    def add_one(*_: object) -> None:
        _STEPS.count += 1

    register_optimizer_step_post_hook(add_one)


_IN_USE: ContextVar[Preparations | None] = ContextVar("preparations", default=None)


def prepared(
    make: Callable[..., Value], weights: Sequence[Tensor], *settings: Any
) -> Value:
    """What `make(weights, *settings)` gives, kept where preparations are in use."""
    preparations = _IN_USE.get()
    if preparations is None:
        return make(weights, *settings)
    return preparations.get(make, weights, *settings)


def keeps_preparations(weight: Tensor) -> bool:
    """Whether what is prepared of a weight now is there the next time."""
    return _IN_USE.get() is not None and tells_changes(weight)


def tells_changes(weight: Tensor) -> bool:
    """Whether the weight counts how often it was written to."""
    return not weight.is_inference()


def infers_on_cpu(x: Tensor) -> bool:
    """Whether x is computed with in float32 on a CPU and nobody asks for gradients."""
    return (
        x.device.type == "cpu"
        and x.dtype == torch.float32
        and type(x) is Tensor
        and not torch.is_grad_enabled()
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
        and not needs_torchs_own()
    )
