"""One step of training: from a batch to changed weights, or to unchanged ones."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from t2t.data.augment.config import Augmentation
from t2t.data.augment.pipeline import augment
from t2t.data.rng import CounterRng
from t2t.data.sampler import Batch
from t2t.errors import UserError
from t2t.shapes import Images, Labels, Pixels
from t2t.training.distributed import (
    World,
    batch_statistics,
    sum_over_all,
    sync_gradients,
)
from t2t.training.evaluation.evaluate import autocast
from t2t.training.graphs import Replayed
from t2t.training.muon import Muon
from t2t.training.objectives import build_objective
from t2t.training.optim import all_groups, learning_by
from t2t.training.recipe import Phase, Recipe
from t2t.training.runtime import PRECISIONS, Runtime, deterministic
from t2t.training.state import TrainState, update_ema

# In the error of a kernel that has no repeatable form.
NOT_REPEATABLE = "use_deterministic_algorithms"
# The optimizers whose learning rate can be a number on the device.
CAPTURED = (torch.optim.AdamW, torch.optim.SGD, Muon)


class StepResult(NamedTuple):
    """What came of a step."""

    step: int
    """Counted from 1."""
    loss: float
    gradient_norm: float
    stepped: bool
    """False where the loss or the gradient was not finite, so nothing was changed."""


class PendingStep:
    """A step that the device may still be at."""

    def __init__(self, run: TrainState, found: Tensor) -> None:
        self.run, self.step = run, run.step
        self.done: torch.cuda.Event | None = None
        self.found = found
        if found.is_cuda:
            self.found = torch.empty(found.shape, pin_memory=True)
            self.found.copy_(found, non_blocking=True)
            self.done = torch.cuda.Event()
            self.done.record()

    def get(self) -> StepResult:
        """Waits for the step; to be asked once."""
        if self.done is not None:
            self.done.synchronize()
        loss, norm = self.found.tolist()
        stepped = math.isfinite(loss) and math.isfinite(norm)
        run = self.run
        run.num_skipped += not stepped
        run.num_skipped_in_a_row = 0 if stepped else run.num_skipped_in_a_row + 1
        return StepResult(self.step, loss, norm, stepped)


def replays(runtime: Runtime, world: World) -> bool:
    """Whether steps are CUDA graphs: on one GPU, but not with fp16's changing scale."""
    on_cuda = world.device.type == "cuda"
    return on_cuda and not world.is_distributed and runtime.precision != "fp16"


class Stepper:
    """Takes a run's steps, each a function of the run, the batch and (seed, step).

    On one CUDA device a step is one CUDA graph, which itself leaves everything as it
    was where the gradient is not finite, so that the host need not look first.
    """

    def __init__(
        self,
        recipe: Recipe,
        runtime: Runtime,
        world: World,
        run: TrainState,
        num_classes: int,
        warn: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        self.recipe, self.runtime, self.world, self.run = recipe, runtime, world, run
        self.warn = warn
        self.num_classes = num_classes
        self.precision = PRECISIONS[runtime.precision or "fp32"]
        classes = run.data.get("classes", ())
        self.objective = build_objective(recipe, world.device, num_classes, classes)
        on_cuda = world.device.type == "cuda"
        # Hundreds of passes over the images become a few: this always pays on a GPU.
        self.prepare = prepare
        if on_cuda or runtime.compile:
            self.prepare = torch.compile(prepare, fullgraph=True)
        self.forward = torch.compile(run.model) if runtime.compile else run.model
        self.statistics = batch_statistics(run.plain)
        self.before: list[Tensor] = []
        # Many processes sum gradients in an order of their own.
        self.is_strict = not world.is_distributed
        self.replays = replays(runtime, world)
        self.set_phase(recipe.phase_at(0.0))

    def set_phase(self, phase: Phase) -> None:
        """Makes steps those of a phase, which is a program of its own."""
        self.phase = phase
        keep_tokens(self.run.plain, self.recipe.model, phase.keep)
        augmentation = self.recipe.augmentation
        self.augmentation = (
            augmentation.light() if phase.light_augment else augmentation
        )
        self.resolve_runtime()
        find, whole = self.find_gradient, self.whole_step
        captured = all(type(each) in CAPTURED for each in self.run.optimizers)
        self.gradient = Replayed(find) if self.replays and not captured else find
        self.whole = Replayed(whole) if self.replays and captured else None

    def resolve_runtime(self) -> None:
        """Waits until no graph runs any more that is about to be given back."""
        if self.replays:
            torch.cuda.synchronize(self.world.device)

    def train_step(self, batch: Batch) -> StepResult:
        """One step of the optimizers; left out where the gradient is not finite."""
        return self.start_step(batch).get()

    def start_step(self, batch: Batch) -> PendingStep:
        """The same, without waiting for the device where that can be helped."""
        run, recipe, world = self.run, self.recipe, self.world
        self.draw_anew()
        step = on_device(run.step, world.device)
        inputs = (batch.images, batch.labels, batch.keys, step)
        share = 1 - recipe.ema.decay_at(run.step + 1)
        if self.whole is not None:
            rates = [group["lr"] for group in all_groups(run.optimizers)]
            found = self.whole(*inputs, on_device([*rates, share], world.device))
            run.step += 1
            return PendingStep(run, found)
        found = self.gradient(*inputs).cpu()
        run.step += 1
        if found.isfinite().all():
            for optimizer in run.optimizers:
                optimizer.step()
            update_ema(run, share)
        else:
            self.restore_statistics()
        run.scaler.update()
        return PendingStep(run, found)

    def whole_step(
        self,
        pixels: Pixels,
        labels: Labels,
        keys: Tensor,
        step: Tensor,
        numbers: Tensor,
    ) -> Tensor:
        """A step that changes nothing by itself where its gradient is not finite.

        The numbers are every group's learning rate and the average's share.
        """
        found = self.find_gradient(pixels, labels, keys, step)
        broken = 1 - found.isfinite().all().float()
        *rates, share = numbers.unbind()
        with learning_by(rates, broken, self.run.optimizers):
            for optimizer in self.run.optimizers:
                optimizer.step()
        # The average takes statistics as they are, so these come first.
        for now, before in zip(self.statistics, self.before, strict=True):
            now.copy_(torch.where(broken > 0, before, now))
        update_ema(self.run, share * (1 - broken))
        return found

    def find_gradient(
        self, pixels: Pixels, labels: Labels, keys: Tensor, step: Tensor
    ) -> Tensor:
        """Leaves the gradient with the parameters; the loss and the gradient's norm."""
        run, recipe, world = self.run, self.recipe, self.world
        for optimizer in run.optimizers:
            optimizer.zero_grad(set_to_none=True)
        # Outside of what is compiled: that would be compiled anew for every seed.
        rng = CounterRng.of(recipe.seed, step, keys)
        given = (pixels, labels, rng.keys, rng.step_key)
        images, targets = self.prepare(*given, self.augmentation, self.num_classes)
        size = self.runtime.micro_batch or len(images)
        parts = list(zip(images.split(size), targets.split(size), strict=True))
        run.model.train()
        self.before = [kept.clone() for kept in self.statistics]
        total = torch.zeros((), device=world.device)
        for number, (some, wanted) in enumerate(parts, start=1):
            sync_gradients(run.model, number == len(parts))
            share = len(some) / len(images)
            try:
                loss = self.add_gradient(some, wanted, share)
            except RuntimeError as error:
                if not self.is_strict or NOT_REPEATABLE not in str(error):
                    raise
                # It fails at the first images, or never: nothing else is lost.
                self.relax(error)
                loss = self.add_gradient(some, wanted, share)
            total += loss * share
        norm = self.gradient_norm()
        total = sum_over_all(total, world) / world.size
        return torch.stack([total, norm])

    def add_gradient(self, images: Images, targets: Tensor, share: float) -> Tensor:
        """Adds so much of the gradient of some images to the parameters'; the loss."""
        with deterministic(self.is_strict):
            with autocast(self.world.device, self.precision):
                loss = self.objective(self.forward, images, targets)
            self.run.scaler.scale(loss * share).backward()
        return loss.detach()

    def relax(self, error: RuntimeError) -> None:
        """From now on allows kernels that may differ in the last bits, and says so."""
        self.is_strict = False
        reason = str(error).split(".")[0].split(",")[0]
        self.warn(f"This run may differ in the last bits when repeated: {reason}.")
        for optimizer in self.run.optimizers:
            optimizer.zero_grad(set_to_none=True)
        self.restore_statistics()
        self.draw_anew()

    def restore_statistics(self) -> None:
        """Puts BatchNorm's statistics back to what they were before the step."""
        for now, before in zip(self.statistics, self.before, strict=True):
            now.copy_(before)

    def draw_anew(self) -> None:
        """Begins the step's own draws: dropout and stochastic depth."""
        seed, step = self.recipe.seed, self.run.step
        torch.manual_seed(step_seed(seed, step, self.world.rank))

    def gradient_norm(self) -> Tensor:
        """The norm of the gradient, clipped where the recipe says so."""
        run = self.run
        for optimizer in run.optimizers:
            run.scaler.unscale_(optimizer)
        limit = self.recipe.optimizer.clip_norm or float("inf")
        norm = nn.utils.clip_grad_norm_(run.model.parameters(), limit, foreach=True)
        full = getattr(norm, "full_tensor", None)
        return full() if full is not None else norm


def keep_tokens(model: nn.Module, name: str, share: float) -> None:
    """Lets a model's blocks see a share of the tokens while it is trained."""
    encoder = getattr(model, "encoder", None)
    if encoder is not None:
        encoder.keep_tokens(share)
    elif share < 1:
        raise UserError(f"{name} has no tokens to drop; set token_dropping.keep=1.")


def prepare(
    pixels: Pixels,
    labels: Labels,
    keys: Tensor,
    step_key: Tensor,
    augmentation: Augmentation,
    num_classes: int,
) -> tuple[Images, Tensor]:
    """Augmented images and soft targets, by the keys of a step's draws."""
    rng = CounterRng(keys=keys, step_key=step_key)
    return augment(pixels, labels, rng, augmentation, num_classes)


def on_device(numbers: float | list[float], device: torch.device) -> Tensor:
    """Numbers as a tensor there, without waiting for what the device is doing."""
    tensor = torch.tensor(numbers)
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def step_seed(seed: int, step: int, rank: int) -> int:
    """One number for what a step draws on its own: dropout and stochastic depth."""
    return ((seed * 1_000_003 + step) * 1_000_003 + rank) % 2**63
