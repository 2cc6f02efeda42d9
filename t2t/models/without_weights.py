"""Builds models whose weights have shapes and no values."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

DRAWS = {
    Tensor.normal_,
    Tensor.uniform_,
    Tensor.erfinv_,
    Tensor.clamp_,
    Tensor.bernoulli_,
    Tensor.exponential_,
}
"""What initialisation calls. On the meta device some import torch's compiler."""


class SkipDraws(TorchFunctionMode):
    """Leaves out what would fill weights that have no values."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Calls the function, unless it draws numbers."""
        if func in DRAWS and args[0].is_meta:
            return args[0]
        return func(*args, **(kwargs or {}))


@contextmanager
def without_weights() -> Iterator[None]:
    """Models built within have weights on the meta device, which take no time."""
    with torch.device("meta"), SkipDraws():
        yield
