"""The norm of a gradient, of which each process may hold a shard, and its clipping."""

import torch
from torch import Tensor, nn

from t2t.models.shards import is_dtensor, local_tensors, num_copies

EPSILON = 1e-6
"""What torch adds to a norm that it divides by."""


class Gradient:
    """The gradient of a module's weights: all of it, or this process's shards."""

    def __init__(self, module: nn.Module, num_processes: int) -> None:
        found = [each.grad for each in module.parameters() if each.grad is not None]
        self.is_sharded = any(is_dtensor(each) for each in found)
        self.num_parts = num_processes // num_copies(found[0]) if found else 1
        """Into how many parts it is cut."""
        with torch.no_grad():
            self.parts = local_tensors(found)
        self.norm = nn.utils.get_total_norm(self.parts, foreach=True).reshape(1)
        """Of this process's parts."""

    @property
    def square(self) -> Tensor:
        """The square of the norm of this process's parts."""
        return self.norm.square()

    def whole_norm(self, mean_square: Tensor) -> Tensor:
        """The norm of all parts, given the mean of `square` over all processes."""
        if not self.is_sharded:
            return self.norm
        return (mean_square * self.num_parts).sqrt()

    def clip(self, norm: Tensor, limit: float) -> None:
        """Scales the gradient to a norm of at most `limit`; 0 is no limit."""
        if limit:
            factor = (limit / (norm + EPSILON)).clamp(max=1.0)
            torch._foreach_mul_(self.parts, factor.squeeze())
