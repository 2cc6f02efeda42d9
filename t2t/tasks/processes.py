"""Rows and means over all processes, through which gradients flow.

Each process has the same number of images, and DDP and FSDP average the gradients. So a
loss of these rows is trained as by one process with all images.
"""

import torch
import torch.distributed as dist
from jaxtyping import Float, Int64
from torch import Tensor, nn

Rows = Float[Tensor, "rows width"]


def num_processes() -> int:
    """The number of processes that train together."""
    return dist.get_world_size() if dist.is_initialized() else 1


def mean_of_all(tensor: Tensor) -> Tensor:
    """The mean of a tensor over all processes."""
    if not dist.is_initialized():
        return tensor
    from t2t.tasks.collectives import sum_over_processes  # imports the compiler

    total: Tensor = sum_over_processes(tensor)
    return total / num_processes()


def rows_of_all(rows: Rows) -> Rows:
    """The rows of all processes."""
    if not dist.is_initialized():
        return rows
    from t2t.tasks.collectives import gather_over_processes  # imports the compiler

    gathered: Tensor = gather_over_processes(rows)
    return gathered


def own_rows(rows: Rows) -> Int64[Tensor, " rows"]:
    """The numbers of this process's rows among those of all."""
    first = dist.get_rank() * len(rows) if num_processes() > 1 else 0
    return torch.arange(first, first + len(rows), device=rows.device)


class BatchNorm(nn.BatchNorm1d):
    """Batch norm over the images of all processes, on any device."""

    def forward(self, rows: Rows) -> Rows:
        """The rows, normalized."""
        num = len(rows) * num_processes()
        if not (self.training and dist.is_initialized()) or num == 1:
            return super().forward(rows)
        levels = rows.float()
        mean = mean_of_all(levels.mean(0))
        centred = levels - mean
        variance = mean_of_all(centred.square().mean(0))
        self.update_statistics(mean, variance * num / (num - 1))
        normalized = centred * (variance + self.eps).rsqrt()
        if self.affine:
            normalized = normalized * self.weight + self.bias
        return normalized.to(rows.dtype)

    @torch.no_grad()
    def update_statistics(self, mean: Tensor, variance: Tensor) -> None:
        """Moves the running statistics, as torch's batch norm does."""
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        assert self.momentum is not None
        self.num_batches_tracked.add_(1)
        self.running_mean.lerp_(mean, self.momentum)
        self.running_var.lerp_(variance, self.momentum)


class Centre(nn.BatchNorm1d):
    """Subtracts the running mean of all processes' rows from before this batch.

    It is a batch norm so that a step that is skipped restores its mean.
    """

    def __init__(self, width: int, momentum: float) -> None:
        super().__init__(width, momentum=momentum, affine=False)

    @torch.no_grad()
    def forward(self, rows: Rows) -> Rows:
        """The rows, centred."""
        assert self.running_mean is not None
        assert self.momentum is not None
        levels = rows.float()
        centred = levels - self.running_mean
        if self.training:
            self.running_mean.lerp_(mean_of_all(levels.mean(0)), self.momentum)
        return centred
