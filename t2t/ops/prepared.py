"""What is computed from weights alone, kept while they stay as they are."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import torch
from torch import Tensor

Value = TypeVar("Value")


class Preparations:
    """Results of functions of weights, each made at first use and after a change."""

    def __init__(self) -> None:
        self._kept: dict[Any, tuple[Sequence[Tensor], list[int], Any]] = {}

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
        places = tuple((weight.data_ptr(), weight.shape) for weight in weights)
        versions = [version_of(weight) for weight in weights]
        known = self._kept.get((make, places, settings))
        if known is None or known[1] != versions:
            # Weights are kept too, so that no others can take their addresses.
            known = weights, versions, make(weights, *settings)
            self._kept[make, places, settings] = known
        value: Value = known[2]
        return value


_IN_USE: ContextVar[Preparations | None] = ContextVar("preparations", default=None)


def prepared(
    make: Callable[..., Value], weights: Sequence[Tensor], *settings: Any
) -> Value:
    """What `make(weights, *settings)` gives, kept where preparations are in use."""
    preparations = _IN_USE.get()
    if preparations is None:
        return make(weights, *settings)
    return preparations.get(make, weights, *settings)


def keeps_preparations() -> bool:
    """Whether what is prepared now is there the next time."""
    return _IN_USE.get() is not None


def version_of(weight: Tensor) -> int:
    """A number that changes whenever the weight is written to."""
    return -1 if weight.is_inference() else weight._version


def infers_on_cpu(x: Tensor) -> bool:
    """Whether x is computed with in float32 on a CPU and nobody asks for gradients."""
    return (
        x.device.type == "cpu"
        and x.dtype == torch.float32
        and type(x) is Tensor
        and not torch.is_grad_enabled()
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
        and not torch.jit.is_tracing()  # type: ignore[attr-defined]
    )
