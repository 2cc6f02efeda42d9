"""What benchmarks/kernels.py times: one setting of an operation on one shape."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Tensors = tuple[Tensor, ...]
DEVICE = "cuda"


@dataclass(frozen=True)
class Setting:
    """One way to run an operation on one shape."""

    operation: str
    shape: str
    setting: str
    num_bytes: int
    """The least that must be read and written."""
    run: Callable[[], Tensors]
    wanted: Callable[[], Tensors]
    """What it should return, in float64."""

    @property
    def name(self) -> str:
        return f"{self.operation}, {self.shape}, {self.setting}"


def on_gpu(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Normal numbers, the same for the same shape."""
    generator = torch.Generator(DEVICE).manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, device=DEVICE).to(dtype)
