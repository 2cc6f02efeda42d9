"""Muon: momentum whose matrices are made orthogonal before they are applied."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributed.tensor import DTensor

# Five quintic iterations that bring every singular value near 1, fast rather than far.
COEFFICIENTS = (3.4445, -4.775, 2.0315)
NUM_ITERATIONS = 5
SMALLEST_NORM = 1e-7


class Muon(torch.optim.Optimizer):
    """Muon over matrices, those of one shape together; sizes of step are AdamW's."""

    def __init__(
        self,
        params: Iterable[dict[str, Any]],
        lr: float,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
    ) -> None:
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Changes every matrix that has a gradient."""
        for group in self.param_groups:
            for matrices in by_shape(group["params"]):
                self.change(matrices, group)

    def change(self, matrices: list[Tensor], group: dict[str, Any]) -> None:
        """Moves matrices of one shape by their orthogonal momentum."""
        gradients = [matrix.grad for matrix in matrices if matrix.grad is not None]
        kept = [self.momentum_of(matrix) for matrix in matrices]
        decay = 1 - group["lr"] * group["weight_decay"]
        size = -group["lr"] * 0.2 * max(matrices[0].shape) ** 0.5
        if len(matrices) == 1:  # a shard, too: not every torch takes those in lists
            kept[0].lerp_(gradients[0], 1 - group["momentum"])
            step = orthogonal(gradients[0].lerp(kept[0], group["momentum"]))
            matrices[0].mul_(decay).add_(step.to(matrices[0].dtype) * size)
            return
        torch._foreach_lerp_(kept, gradients, 1 - group["momentum"])
        # Nesterov's form: a look ahead from the gradient as it is now.
        ahead = torch._foreach_lerp(gradients, kept, group["momentum"])
        steps = orthogonal(torch.stack(list(ahead))).to(matrices[0].dtype) * size
        torch._foreach_mul_(matrices, decay)
        torch._foreach_add_(matrices, list(steps.unbind(0)))

    def momentum_of(self, matrix: Tensor) -> Tensor:
        """The momentum of a matrix, 0 at first."""
        state = self.state[matrix]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(matrix)
        kept: Tensor = state["momentum"]
        return kept


def by_shape(matrices: list[Tensor]) -> list[list[Tensor]]:
    """Matrices with a gradient, those of one shape together; shards one by one."""
    groups: dict[Any, list[Tensor]] = defaultdict(list)
    for number, matrix in enumerate(matrices):
        if matrix.grad is not None:
            alone = isinstance(matrix, DTensor)
            groups[number if alone else matrix.shape].append(matrix)
    return list(groups.values())


def orthogonal(
    update: Float[Tensor, "*batch rows columns"],
) -> Float[Tensor, "*batch rows columns"]:
    """Each matrix with its singular values near 1, by Newton-Schulz iterations.

    In bf16 on a GPU, where it is fast and enough; in float32 elsewhere.
    """
    first, third, fifth = COEFFICIENTS
    x = update.bfloat16() if update.is_cuda else update.float()
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=SMALLEST_NORM)
    for _ in range(NUM_ITERATIONS):
        square = x @ x.mT
        if x.ndim == 3:  # sums as part of the products: a third of the kernels
            square = torch.baddbmm(square, square, square, beta=third, alpha=fifth)
            x = torch.baddbmm(x, square, x, beta=first)
        else:
            x = first * x + (third * square + fifth * square @ square) @ x
    return x.mT if tall else x
