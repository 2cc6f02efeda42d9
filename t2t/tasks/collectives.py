"""Sums and rows of all processes, through which gradients flow."""

from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor

Rows = Float[Tensor, "rows width"]


class Sum(torch.autograd.Function):
    """The sum of a tensor over all processes."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        total = tensor.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        total = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total


class Gather(torch.autograd.Function):
    """The rows of all processes, in the order of ranks."""

    @staticmethod
    def forward(ctx: Any, rows: Rows) -> Rows:
        gathered = rows.new_empty(dist.get_world_size(), *rows.shape)
        dist.all_gather([*gathered], rows.contiguous())
        return gathered.flatten(0, 1)

    @staticmethod
    def backward(ctx: Any, gradient: Rows) -> Rows:
        total = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total.chunk(dist.get_world_size())[dist.get_rank()]


# A compiler would trace into the collectives.
sum_over_processes = torch.compiler.disable(Sum.apply)
gather_over_processes = torch.compiler.disable(Gather.apply)
