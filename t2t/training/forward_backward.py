"""The gradient of a batch: micro-batches, mixed precision, several processes."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from t2t.errors import UserError
from t2t.models.checkpoint_io.adapt import shorten
from t2t.tasks.base import Numbers, Task, Views
from t2t.tasks.checks import checked_numbers
from t2t.training.distributed import (
    World,
    all_reduce_sum,
    batch_norm_buffers,
    sync_gradients,
)
from t2t.training.evaluation.evaluate import autocast
from t2t.training.gradient_clipping import Gradient
from t2t.training.recipe import Recipe
from t2t.training.runtime import Runtime, deterministic
from t2t.training.state import TrainState

# Part of the error of a kernel that has no deterministic form.
NOT_DETERMINISTIC = "use_deterministic_algorithms"
# Part of the error of a batch norm with one value per channel.
ONE_VALUE = "Expected more than 1 value per channel"


class ForwardBackward:
    """Computes the gradient of a batch, and clips it."""

    def __init__(
        self,
        recipe: Recipe,
        runtime: Runtime,
        world: World,
        state: TrainState,
        warn: Callable[[str], None],
    ) -> None:
        self.recipe, self.runtime, self.world = recipe, runtime, world
        self.state, self.warn = state, warn
        self.forward: Callable[[Views], Numbers] = state.trained
        self.compiled = False
        self.names: list[str] = ["loss"]
        """The names of a step's numbers, `loss` first; known after the first step."""
        # A frozen teacher's stay as they are, so they are neither copied nor restored.
        self.statistics = batch_norm_buffers(state.task.train(), only_training=True)
        self.statistics_before: list[Tensor] = []
        """Copies from before the step."""
        # Several processes sum gradients in no fixed order.
        self.is_strict = not world.is_distributed
        self.to_check = isinstance(state.trained, DistributedDataParallel)
        """Whether a weight may still turn out to have no gradient."""

    def compile(self) -> None:
        """Compiles the task at its next call."""
        self.compiled = True
        self.forward = torch.compile(self.state.trained)

    def __call__(self, requests: Tensor, views: Views) -> Tensor:
        """Computes the gradient.

        Returns the loss, the norm, the requests of all processes and other numbers.
        """
        state, world = self.state, self.world
        for optimizer in state.optimizers:
            optimizer.zero_grad(set_to_none=True)
        num_images = len(next(iter(views.values())))
        parts = split_views(views, self.runtime.micro_batch or num_images)
        if not state.task.training:  # after an evaluation
            state.trained.train()
        self.statistics_before = [each.clone() for each in self.statistics]
        totals: dict[str, Tensor] = {}
        for number, part in enumerate(parts, start=1):
            if len(parts) > 1:
                sync_gradients(state.trained, number == len(parts))
            share = len(next(iter(part.values()))) / num_images
            try:
                numbers = self.add_gradient(part, share)
            except RuntimeError as error:
                if not self.is_strict or NOT_DETERMINISTIC not in str(error):
                    raise
                # It fails at the first micro-batch, or never: nothing else is lost.
                self.allow_nondeterminism(error)
                numbers = self.add_gradient(part, share)
            for name, value in numbers.items():
                totals[name] = totals.get(name, 0) + value.detach().float() * share
        if self.to_check:
            check_all_used(state.task)
            self.to_check = False
        for optimizer in state.optimizers:
            state.scaler.unscale_(optimizer)
        gradient = Gradient(state.trained, world.size)
        others = [name for name in totals if name != "loss"]
        self.names = ["loss", *others]
        values = torch.stack([totals[name] for name in self.names])
        values = torch.cat([values[:1], requests, values[1:], gradient.square])
        # Also agrees on whether the loss is finite, and adds up the shards' squares.
        values = all_reduce_sum(values, world) / world.size
        norm = gradient.whole_norm(values[-1:])
        gradient.clip(norm, self.recipe.optimizer.clip_norm)
        return torch.cat([values[:1], norm, values[1:-1]])

    def add_gradient(self, views: Views, share: float) -> Numbers:
        """Adds the gradient of some images, scaled by their share of the batch."""
        try:
            with deterministic(self.is_strict, self.compiled):
                with autocast(self.world.device, self.runtime.dtype):
                    numbers = checked_numbers(self.state.task, self.forward(views))
                self.state.scaler.scale(numbers["loss"] * share).backward()
        except ValueError as error:
            if ONE_VALUE not in str(error):
                raise
            num_images = len(next(iter(views.values())))
            raise UserError(
                f"The model's batch norms need more than {num_images} image at once, "
                "or larger images; set batch_size, --micro-batch or image_size higher."
            ) from error
        return numbers

    def allow_nondeterminism(self, error: RuntimeError) -> None:
        """From now on, allows kernels that are not deterministic, with a warning."""
        self.is_strict = False
        reason = str(error).split(".")[0].split(",")[0]
        self.warn(f"This run may differ in the last bits when repeated: {reason}.")
        for optimizer in self.state.optimizers:
            optimizer.zero_grad(set_to_none=True)
        self.restore_statistics()
        self.seed_step()

    def restore_statistics(self, condition: Tensor | None = None) -> None:
        """Restores the batch norms' statistics from before the step.

        With a condition, only if it is true, which the host does not have to know.
        """
        for now, before in zip(self.statistics, self.statistics_before, strict=True):
            now.copy_(before if condition is None else before.where(condition, now))

    def seed_step(self) -> None:
        """Seeds torch's random numbers: dropout and stochastic depth."""
        seed, step = self.recipe.seed, self.state.step
        torch.manual_seed(step_seed(seed, step, self.world.rank))


def check_all_used(task: Task) -> None:
    """Raises an error for a weight without gradient: processes would wait for it."""
    unused = [
        name
        for name, parameter in task.named_parameters()
        if parameter.requires_grad and parameter.grad is None
    ]
    if unused:
        raise UserError(
            f"{shorten(unused)} of {type(task).__name__} have no part in the loss, "
            "which several processes do not allow; freeze them with "
            "requires_grad_(False), or remove them."
        )


def split_views(views: Views, size: int) -> list[Views]:
    """The views of at most `size` images at a time."""
    parts = [each.split(size) for each in views.values()]
    return [dict(zip(views, part, strict=True)) for part in zip(*parts, strict=True)]


def step_seed(seed: int, step: int, rank: int) -> int:
    """The seed of a step's dropout and stochastic depth."""
    return ((seed * 1_000_003 + step) * 1_000_003 + rank) % 2**63
