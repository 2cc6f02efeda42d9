"""One training step: from a batch to updated weights, or to unchanged ones."""

import math
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from t2t.data.augment.config import Augmentation
from t2t.data.crops import shrink
from t2t.data.rng import CounterRng
from t2t.data.sampler import Batch
from t2t.errors import UserError
from t2t.models.checkpoint_io.adapt import shorten
from t2t.shapes import Labels, Pixels
from t2t.tasks.base import Numbers, Task, Views
from t2t.tasks.checks import checked_numbers, checked_views
from t2t.training.compile_policy import compiles_at_once
from t2t.training.cuda_graph import GraphedFunction
from t2t.training.distributed import (
    World,
    all_reduce_sum,
    batch_norm_buffers,
    sync_gradients,
)
from t2t.training.evaluation.evaluate import autocast
from t2t.training.gradient import Gradient
from t2t.training.muon import Muon
from t2t.training.optim import all_groups, device_learning_rates
from t2t.training.recipe import Phase, Recipe
from t2t.training.runtime import (
    PRECISIONS,
    Runtime,
    captures_steps,
    deterministic,
    uses_cuda_graphs,
)
from t2t.training.state import TrainState, update_ema
from t2t.training.step_result import PendingStep, Requests, StepResult
from t2t.training.torch_optimizers import SGD, AdamW

# Part of the error of a kernel that has no deterministic form.
NOT_DETERMINISTIC = "use_deterministic_algorithms"
# Part of the error of a batch norm with one value per channel.
ONE_VALUE = "Expected more than 1 value per channel"
# Before training's own kernels: augmentation has few, which would wait for large ones.
AUGMENT_PRIORITY = -2
# Optimizers whose learning rate can be a tensor on the device.
CAPTURABLE = (AdamW, SGD, torch.optim.AdamW, torch.optim.SGD, Muon)
# DDP times its first ten steps by events, for which the host waits.
NUM_DDP_WARMUPS = 11


class Stepper:
    """Runs the steps of a task, each a function of the state, the batch, (seed, step).

    On CUDA devices a step is two CUDA graphs: one augments the batch, on a stream of
    its own beside the step before; the other trains on it. The graph itself changes
    nothing if the gradient is not finite: the host does not have to wait and check.
    With several processes the graph holds DDP's collectives too; a sharded step is
    launched kernel by kernel, also without waiting.
    """

    def __init__(
        self,
        recipe: Recipe,
        runtime: Runtime,
        world: World,
        state: TrainState,
        warn: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        self.recipe, self.runtime, self.world = recipe, runtime, world
        self.state, self.warn = state, warn
        self.precision = PRECISIONS[runtime.precision or "fp32"]
        self.forward: Callable[[Views], Numbers] = state.trained
        self.augment_batch = augment_batch
        self.names: list[str] = ["loss"]
        """The names of a step's numbers, `loss` first; known after the first step."""
        self.view_names: tuple[str, ...] = ()
        # A frozen teacher's stay as they are, so they are neither copied nor restored.
        self.statistics = batch_norm_buffers(state.task.train(), only_training=True)
        self.statistics_before: list[Tensor] = []
        """Copies from before the step."""
        # Several processes sum gradients in no fixed order.
        self.is_strict = not world.is_distributed
        self.to_check = isinstance(state.trained, DistributedDataParallel)
        """Whether a weight may still turn out to have no gradient."""
        self.uses_graphs = uses_cuda_graphs(runtime, world)
        self.captures = captures_steps(runtime, world)
        self.augment_stream: torch.cuda.Stream | None = None
        if self.uses_graphs:
            self.augment_stream = torch.cuda.Stream(world.device, AUGMENT_PRIORITY)
        self.loaded_beside: Batch | None = None
        """The batch that was made on the stream of the augmentation."""
        self.num_started = 0
        """Steps started by this process."""
        self.is_rehearsed = self.compiled = False
        if compiles_at_once(runtime, world):
            self.compile()
        self.set_phase(recipe.phase_at(0.0))

    def compile(self) -> None:
        """Compiles the augmentation and the task at their next call."""
        self.compiled = True
        self.augment_batch = torch.compile(augment_batch, fullgraph=True)
        self.forward = torch.compile(self.state.trained)

    def set_phase(self, phase: Phase) -> None:
        """Switches to a phase, whose steps are captured on their own."""
        self.synchronize()
        self.enter_phase(phase)
        self.captured: GraphedFunction[Tensor] | None = None
        self.gradient: Callable[..., Tensor] = self.find_gradient
        self.augment: Callable[..., tuple[Tensor, ...]] = self.make_views
        if not self.uses_graphs:
            return
        # Once a step was taken, the optimizers have their memory.
        num_warmups = 1 if self.is_rehearsed and self.num_started else 2
        self.augment = GraphedFunction(self.make_views, num_warmups)
        if all(type(each) in CAPTURABLE for each in self.state.optimizers):
            self.captured = self.graphed(self.captured_step, num_warmups)
        else:
            self.gradient = self.graphed(self.find_gradient, num_warmups)

    def graphed(
        self, function: Callable[..., Tensor], num_warmups: int
    ) -> GraphedFunction[Tensor]:
        """A part of the step as a CUDA graph, or called each time if it is sharded."""
        if not self.world.is_distributed:
            return GraphedFunction(function, num_warmups)
        # DDP adds up gradients on the stream on which it was made.
        stream = torch.cuda.current_stream(self.world.device)
        if not self.captures:
            return GraphedFunction(function, math.inf, stream)
        left = NUM_DDP_WARMUPS - self.num_started
        return GraphedFunction(function, max(num_warmups, left), stream)

    def enter_phase(self, phase: Phase) -> None:
        """Sets the share of tokens and the augmentation of a phase."""
        self.phase = phase
        keep_tokens(self.state.model, self.recipe.model, phase.keep)
        check_any_size(self.state.model, self.recipe.model, phase.scale)
        augmentation = self.recipe.augmentation
        self.augmentation = (
            augmentation.light() if phase.light_augment else augmentation
        )

    def rehearse(self, batch: Batch, phases: Iterable[Phase]) -> None:
        """Computes the gradient of a batch in each phase, and changes nothing.

        So everything is compiled, chosen and allocated before it is needed.
        """
        now = self.phase
        with unchanged_buffers(self.state.task):
            for phase in phases:
                self.enter_phase(phase)
                step = on_device(self.state.step, self.world.device)
                inputs = (batch.labels, batch.keys, step, *batch.views)
                nothing = step.new_zeros(len(Requests()))
                self.find_gradient(nothing, *self.make_views(*inputs))
        for optimizer in self.state.optimizers:
            optimizer.zero_grad(set_to_none=True)
        self.statistics_before = []
        self.enter_phase(now)
        self.is_rehearsed = True

    def synchronize(self) -> None:
        """Waits for CUDA graphs that are about to be freed."""
        if self.uses_graphs:
            torch.cuda.synchronize(self.world.device)

    def load(self, batches: Generator[Batch]) -> Generator[Batch]:
        """The batches, each made on the device while the step before it still runs."""
        stream = self.augment_stream
        with closing(batches):
            if stream is None:
                yield from batches
                return
            stream.wait_stream(torch.cuda.current_stream(self.world.device))
            while True:
                with torch.cuda.stream(stream):
                    batch = next(batches, None)
                if batch is None:
                    return
                self.loaded_beside = batch
                yield batch

    def train_step(self, batch: Batch, progress: float = 0.0) -> StepResult:
        """One step of the optimizers; skipped if the gradient is not finite."""
        return self.start_step(batch, progress).result()

    def start_step(
        self,
        batch: Batch,
        progress: float = 0.0,
        requests: Requests = Requests(),  # noqa: B008 (a constant)
    ) -> PendingStep:
        """Starts a step; does not wait for the device if it decides by itself.

        `progress` is the share of the training that is done, `requests` are those of
        this process.
        """
        state, recipe, world = self.state, self.recipe, self.world
        self.seed_step()
        self.num_started += 1
        views = self.augmented(batch)
        share = 1 - recipe.ema.decay_at(state.step + 1)
        rates = [group["lr"] for group in all_groups(state.optimizers)]
        lr = max(rates)
        if self.captured is not None:
            inputs = [*rates, share, progress, *map(float, requests)]
            numbers = on_device(inputs, world.device)
            found = self.captured(numbers, *views)
            state.step += 1
            return PendingStep(state, found, self.names, lr)
        state.task.progress.fill_(progress)
        own = on_device([*map(float, requests)], world.device)
        found = self.gradient(own, *views).cpu()
        state.step += 1
        applied = bool(found[:2].isfinite().all())
        if applied:
            for optimizer in state.optimizers:
                optimizer.step()
            update_ema(state, share)
            state.task.after_step(torch.ones((), device=world.device))
        else:
            self.restore_statistics()
        state.scaler.update()
        return PendingStep(state, found, self.names, lr)

    def augmented(self, batch: Batch) -> tuple[Tensor, ...]:
        """The views of a batch, for this step's training on the current stream."""
        step, stream = self.state.step, self.augment_stream
        if stream is None:
            inputs = (batch.labels, batch.keys, on_device(step, self.world.device))
            return self.augment(*inputs, *batch.views)
        training = torch.cuda.current_stream(self.world.device)
        if batch is not self.loaded_beside:
            stream.wait_stream(training)
        with torch.cuda.stream(stream):
            # The step before has to read its views before they are overwritten.
            reader = self.captured or self.gradient
            assert isinstance(reader, GraphedFunction)
            if reader.has_read is not None:
                stream.wait_event(reader.has_read)
            inputs = (batch.labels, batch.keys, on_device(step, self.world.device))
            views = self.augment(*inputs, *batch.views)
        training.wait_stream(stream)
        return views

    def make_views(
        self, labels: Labels, keys: Tensor, step: Tensor, *pixels: Pixels
    ) -> tuple[Tensor, ...]:
        """Augments a batch."""
        # Not compiled: a compiled function would be recompiled for every seed.
        rng = CounterRng.of(self.recipe.seed, step, keys)
        if self.phase.scale < 1:
            pixels = tuple(shrink(each, self.phase.scale) for each in pixels)
        views = self.augment_batch(
            self.state.task, pixels, labels, rng.keys, rng.step_key, self.augmentation
        )
        views = checked_views(self.state.task, views, len(labels))
        self.view_names = tuple(views)
        return tuple(views.values())

    def captured_step(self, numbers: Tensor, *views: Tensor) -> Tensor:
        """A step for CUDA graphs: it changes nothing if its gradient is not finite.

        The numbers are every group's learning rate, the EMA's share, the progress and
        the requests of this process.
        """
        state, num_requests = self.state, len(Requests())
        *rates, share, progress = numbers[:-num_requests].unbind()
        state.task.progress.copy_(progress)
        found = self.find_gradient(numbers[-num_requests:], *views)
        found_inf = 1 - found[:2].isfinite().all().float()
        with device_learning_rates(rates, found_inf, state.optimizers):
            for optimizer in state.optimizers:
                optimizer.step()
        # The EMA copies statistics as they are, so these come first.
        for now, before in zip(self.statistics, self.statistics_before, strict=True):
            now.copy_(torch.where(found_inf > 0, before, now))
        update_ema(state, share * (1 - found_inf))
        state.task.after_step(1 - found_inf)
        return found

    def find_gradient(self, requests: Tensor, *views: Tensor) -> Tensor:
        """Computes the gradient.

        Returns the loss, the norm, the requests of all processes and other numbers.
        """
        state, world = self.state, self.world
        for optimizer in state.optimizers:
            optimizer.zero_grad(set_to_none=True)
        num_images = len(views[0])
        size = self.runtime.micro_batch or num_images
        parts = split_views(dict(zip(self.view_names, views, strict=True)), size)
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
                with autocast(self.world.device, self.precision):
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

    def restore_statistics(self) -> None:
        """Restores the batch norms' statistics from before the step."""
        for now, before in zip(self.statistics, self.statistics_before, strict=True):
            now.copy_(before)

    def seed_step(self) -> None:
        """Seeds torch's random numbers: dropout and stochastic depth."""
        seed, step = self.recipe.seed, self.state.step
        torch.manual_seed(step_seed(seed, step, self.world.rank))


@contextmanager
def unchanged_buffers(module: nn.Module) -> Iterator[None]:
    """Restores the buffers of a module afterwards."""
    before = [(buffer, buffer.clone()) for buffer in module.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in before:
                buffer.copy_(value)


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


def keep_tokens(model: nn.Module, name: str, share: float) -> None:
    """Sets the share of tokens that a model's blocks see in training."""
    encoder = getattr(model, "encoder", None)
    if encoder is not None:
        encoder.keep_tokens(share)
    elif share < 1:
        raise UserError(f"{name} has no tokens to drop; set token_dropping.keep=1.")


def check_any_size(model: nn.Module, name: str, scale: float) -> None:
    """Raises an error for smaller images if a model takes images of one size only."""
    patches = getattr(model, "patch_embed", None)
    if scale < 1 and getattr(patches, "strict_img_size", False):
        raise UserError(
            f"{name} takes images of one size only; set "
            "progressive_resizing.initial_scale=1."
        )


def augment_batch(
    task: Task,
    pixels: tuple[Pixels, ...],
    labels: Labels,
    keys: Tensor,
    step_key: Tensor,
    augmentation: Augmentation,
) -> Views:
    """The task's views of a batch, drawn with the keys of the step."""
    rng = CounterRng(keys=keys, step_key=step_key)
    return task.views(pixels, labels, rng, augmentation)


def split_views(views: Views, size: int) -> list[Views]:
    """The views of at most `size` images at a time."""
    parts = [each.split(size) for each in views.values()]
    return [dict(zip(views, part, strict=True)) for part in zip(*parts, strict=True)]


def on_device(numbers: float | list[float], device: torch.device) -> Tensor:
    """Copies numbers to the device without waiting for it."""
    tensor = torch.tensor(numbers)
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def step_seed(seed: int, step: int, rank: int) -> int:
    """The seed of a step's dropout and stochastic depth."""
    return ((seed * 1_000_003 + step) * 1_000_003 + rank) % 2**63
