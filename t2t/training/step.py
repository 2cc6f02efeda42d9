"""One training step: from a batch to updated weights, or to unchanged ones."""

import math
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager

import torch
from torch import Tensor, nn

from t2t.data.augment.config import Augmentation
from t2t.data.crops import shrink
from t2t.data.rng import CounterRng
from t2t.data.sampler import Batch
from t2t.errors import UserError
from t2t.shapes import Labels, Pixels
from t2t.tasks.base import Task, Views
from t2t.tasks.checks import checked_views
from t2t.training.compile_policy import compiles_at_once
from t2t.training.cuda_graph import GraphedFunction
from t2t.training.distributed import World
from t2t.training.forward_backward import ForwardBackward
from t2t.training.muon import Muon
from t2t.training.optim import all_groups, device_learning_rates
from t2t.training.recipe import Phase, Recipe
from t2t.training.runtime import Runtime, captures_steps, uses_cuda_graphs
from t2t.training.state import TrainState, update_ema
from t2t.training.step_result import PendingStep, Requests, StepResult
from t2t.training.torch_optimizers import SGD, AdamW

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
    With several processes the graph holds the collectives of DDP or FSDP too.
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
        self.state = state
        self.forward_backward = ForwardBackward(recipe, runtime, world, state, warn)
        self.augment_batch = augment_batch
        self.view_names: tuple[str, ...] = ()
        self.uses_graphs = uses_cuda_graphs(runtime, world)
        self.augment_stream: torch.cuda.Stream | None = None
        if self.uses_graphs:
            self.augment_stream = torch.cuda.Stream(world.device, AUGMENT_PRIORITY)
        self.loaded_beside: Batch | None = None
        """The batch that was made on the stream of the augmentation."""
        self.num_started = 0
        """Steps started by this process."""
        self.is_rehearsed = False
        if compiles_at_once(runtime, world):
            self.compile()
        self.set_phase(recipe.phase_at(0.0))

    def compile(self) -> None:
        """Compiles the augmentation and the task at their next call."""
        self.augment_batch = torch.compile(augment_batch, fullgraph=True)
        self.forward_backward.compile()

    @property
    def compiled(self) -> bool:
        """Whether steps are compiled."""
        return self.forward_backward.compiled

    @property
    def launch(self) -> str:
        """How steps run on a GPU, as a sentence."""
        alone = "Steps are launched kernel by kernel"
        if not self.uses_graphs:
            return (
                f"{alone}: the loss scale of {self.runtime.precision} needs the host."
            )
        if not captures_steps(self.runtime, self.world, self.compiled):
            return f"{alone}: they are compiled and sharded."
        if self.captured is None:
            names = [type(each).__name__ for each in self.state.optimizers]
            steps = f"the step of {' and '.join(names)} follows it"
            return f"A gradient is one CUDA graph; {steps}."
        return "A step is one CUDA graph."

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
        """A part of the step as a CUDA graph, or as a function that runs as it is."""
        if not self.world.is_distributed:
            return GraphedFunction(function, num_warmups)
        # DDP adds up gradients on the stream on which it was made.
        stream = torch.cuda.current_stream(self.world.device)
        if not captures_steps(self.runtime, self.world, self.compiled):
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
        self.forward_backward.statistics_before = []
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
        self.forward_backward.seed_step()
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
            return PendingStep(state, found, self.forward_backward.names, lr)
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
            self.forward_backward.restore_statistics()
        state.scaler.update()
        return PendingStep(state, found, self.forward_backward.names, lr)

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
        self.forward_backward.restore_statistics(found_inf > 0)
        update_ema(state, share * (1 - found_inf))
        state.task.after_step(1 - found_inf)
        return found

    def find_gradient(self, requests: Tensor, *views: Tensor) -> Tensor:
        """Computes the gradient of a batch from its views, in the order of their names.

        Returns the loss, the norm, the requests of all processes and other numbers.
        """
        named = dict(zip(self.view_names, views, strict=True))
        return self.forward_backward(requests, named)


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


def on_device(numbers: float | list[float], device: torch.device) -> Tensor:
    """Copies numbers to the device without waiting for it."""
    tensor = torch.tensor(numbers)
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)
