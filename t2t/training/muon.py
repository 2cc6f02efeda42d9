"""Muon: SGD with momentum, whose updates of matrices are orthogonalized.

The filters of a convolution are the rows of a matrix.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from t2t.models.shards import is_dtensor, local_part, local_tensors, sharded_as
from t2t.training.torch_optimizers import Optimizer

# Five quintic Newton-Schulz iterations, which bring singular values near 1.
COEFFICIENTS = (3.4445, -4.775, 2.0315)
NUM_ITERATIONS = 5
MIN_NORM = 1e-7
GATHERED_BYTES = 2**29
"""Of sharded momentum: a process holds it whole while it is orthogonalized."""


class Muon(Optimizer):
    """Muon, batched over matrices; its updates are scaled to the size of AdamW's."""

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
        """Updates every matrix that has a gradient."""
        for group in self.param_groups:
            trained = [each for each in group["params"] if each.grad is not None]
            for part in gathered_together(trained):
                self.update(part, group)

    def update(self, matrices: list[Tensor], group: dict[str, Any]) -> None:
        """Updates matrices by their orthogonalized momentum.

        Of sharded ones the momentum is gathered, and each process orthogonalizes all.
        """
        gradients = local_tensors(
            matrix.grad for matrix in matrices if matrix.grad is not None
        )
        buffers = local_tensors(self.momentum_of(matrix) for matrix in matrices)
        weights = local_tensors(matrices)
        momentum, lr = group["momentum"], group["lr"]
        found_inf: Tensor | None = getattr(self, "found_inf", None)
        if found_inf is not None:  # 1 skips the update: the momentum moves to itself
            skips = found_inf > 0
            gradients = [
                torch.where(skips, buffer, gradient)
                for buffer, gradient in zip(buffers, gradients, strict=True)
            ]
            lr = lr * (1 - found_inf)
        torch._foreach_lerp_(buffers, gradients, 1 - momentum)
        # Nesterov momentum.
        ahead = [
            whole(sharded_as(matrix, part))
            for matrix, part in zip(
                matrices,
                torch._foreach_lerp(gradients, buffers, momentum),
                strict=True,
            )
        ]
        steps = [
            local_part(matrix, as_filters(step, matrix))
            for matrix, step in zip(
                matrices,
                orthogonalize_all([as_matrix(each) for each in ahead]),
                strict=True,
            )
        ]
        torch._foreach_mul_(steps, [-update_scale(matrix) for matrix in matrices])
        torch._foreach_mul_(steps, lr)
        torch._foreach_mul_(weights, 1 - lr * group["weight_decay"])
        torch._foreach_add_(weights, steps)

    def momentum_of(self, matrix: Tensor) -> Tensor:
        """The momentum buffer of a matrix, initially zeros."""
        state = self.state[matrix]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(matrix)
        buffer: Tensor = state["momentum"]
        return buffer


def gathered_together(matrices: list[Tensor]) -> list[list[Tensor]]:
    """Parts of up to `GATHERED_BYTES` of sharded matrices; whole ones all at once."""
    parts: list[list[Tensor]] = []
    left = 0
    for matrix in matrices:
        size = matrix.numel() * matrix.element_size() if is_dtensor(matrix) else 0
        if not parts or size > left:
            parts.append([])
            left = GATHERED_BYTES
        parts[-1].append(matrix)
        left -= size
    return parts


def whole(matrix: Tensor) -> Tensor:
    """A matrix, gathered from all processes if it is sharded."""
    return matrix.full_tensor() if is_dtensor(matrix) else matrix


def update_scale(matrix: Tensor) -> float:
    """The factor that makes an orthogonal update as large as AdamW's."""
    rows = matrix.shape[0]
    return float(0.2 * max(rows, matrix.numel() // rows) ** 0.5)


def as_matrix(weights: Tensor) -> Float[Tensor, "rows columns"]:
    """Filters as rows with channels last, the memory format on GPUs."""
    return weights if weights.ndim == 2 else weights.permute(0, 2, 3, 1).flatten(1)


def as_filters(rows: Float[Tensor, "rows columns"], like: Tensor) -> Tensor:
    """The inverse of `as_matrix`."""
    if like.ndim == 2:
        return rows
    channels, height, width = like.shape[1:]
    return rows.unflatten(1, (height, width, channels)).permute(0, 3, 1, 2)


def orthogonalize_all(updates: Sequence[Tensor]) -> list[Tensor]:
    """Orthogonalizes matrices, batching those with the same shorter side.

    Padding with zeros changes nothing, and a GPU multiplies many small matrices in the
    time of one: there a few with shorter sides join the larger ones.
    """
    by_shape: dict[tuple[int, int], list[int]] = defaultdict(list)
    for number, update in enumerate(updates):
        by_shape[update.shape[0], update.shape[1]].append(number)
    numbers = {shape: len(found) for shape, found in by_shape.items()}
    joins = bool(updates) and updates[0].is_cuda
    found: dict[int, Tensor] = {}
    for shapes in batches_of(numbers, joins):
        stacks = [
            torch.stack([updates[number] for number in by_shape[shape]])
            for shape in shapes
        ]
        done = orthogonalize_stacks(stacks)
        for shape, stack in zip(shapes, done, strict=True):
            found |= zip(by_shape[shape], stack.unbind(0), strict=True)
    return [found[number] for number in range(len(updates))]


def batches_of(
    numbers: Mapping[tuple[int, int], int], joins: bool
) -> list[list[tuple[int, int]]]:
    """Shapes whose matrices are orthogonalized together, given how many there are.

    Those of one shorter side, and shorter ones that join them: at most half as many.
    """
    by_side: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for shape in numbers:
        by_side[min(shape)].append(shape)
    if not joins:
        return [*by_side.values()]
    batches: list[list[tuple[int, int]]] = []
    room = 0
    for _, shapes in sorted(by_side.items(), reverse=True):
        count = sum(numbers[shape] for shape in shapes)
        if count <= room:
            batches[-1] += shapes
            room -= count
        else:
            batches.append([*shapes])
            room = count // 2
    return batches


def orthogonalize_stacks(stacks: list[Tensor]) -> list[Tensor]:
    """Orthogonalizes stacks of matrices, padded to the longest sides."""
    if len(stacks) == 1:
        return [orthogonalize(stacks[0]).to(stacks[0].dtype).contiguous()]
    wide = [x.mT if x.shape[1] > x.shape[2] else x for x in stacks]
    rows, columns = (max(x.shape[axis] for x in wide) for axis in (1, 2))
    padded = [F.pad(x, (0, columns - x.shape[2], 0, rows - x.shape[1])) for x in wide]
    parts = orthogonalize(torch.cat(padded)).split([len(x) for x in wide])
    cut = [
        part[:, : x.shape[1], : x.shape[2]] for part, x in zip(parts, wide, strict=True)
    ]
    return [
        (part.mT if x.shape[1] > x.shape[2] else part).to(x.dtype).contiguous()
        for part, x in zip(cut, stacks, strict=True)
    ]


def orthogonalize(
    update: Float[Tensor, "*batch rows columns"],
) -> Float[Tensor, "*batch rows columns"]:
    """Matrices with singular values near 1, by Newton-Schulz iterations.

    In bf16 on a GPU, which is precise enough; in float32 elsewhere.
    """
    first, third, fifth = COEFFICIENTS
    x = update.bfloat16() if update.is_cuda else update.float()
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=MIN_NORM)
    for _ in range(NUM_ITERATIONS):
        square = x @ x.mT
        if x.ndim == 3:  # baddbmm adds within the product: a third of the kernels
            square = torch.baddbmm(square, square, square, beta=third, alpha=fifth)
            x = torch.baddbmm(x, square, x, beta=first)
        else:
            x = first * x + (third * square + fifth * square @ square) @ x
    return x.mT if tall else x
