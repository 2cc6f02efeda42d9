"""The training loop, top to bottom."""

import shutil
import signal
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import torch
from torch import Tensor, nn

from t2t.data.augment import augment
from t2t.data.batches import Batches, Feeding, evaluation_batches, open_batches
from t2t.data.crops import CenterCrop, RandomCrop
from t2t.data.damage import Damage
from t2t.data.draws import Draws
from t2t.data.order import Batch, steps_per_epoch
from t2t.data.sources import Splits, hold_out, open_splits
from t2t.errors import UserError, choose
from t2t.models.create import create_model
from t2t.models.weights import load_weights, save
from t2t.training.evaluate import Preparation, Score, autocast, evaluate
from t2t.training.folder import RunFolder
from t2t.training.journal import Journal
from t2t.training.objectives import build_objective
from t2t.training.optim import build_optimizers, lr_share, set_lr
from t2t.training.parallel import (
    Processes,
    Spread,
    processes,
    spread_model,
    sum_over_all,
)
from t2t.training.recipe import Recipe
from t2t.training.resume import CheckpointWriter, newest_whole, read
from t2t.training.run import Run, new_average, update_average

PRECISIONS = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
}
# fp16 starts by finding its scale: a few steps are left out on the way.
MOST_SKIPPED = {"bf16": 5, "fp32": 5, "fp16": 25}


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What the machine decides: none of it is part of the result's recipe."""

    device: str | None = None
    """cuda, mps or cpu; found by itself when None."""
    precision: Literal["bf16", "fp16", "fp32"] | None = None
    """bf16 on CUDA and fp32 elsewhere when None."""
    compile: bool | None = None
    """torch.compile; on CUDA when None."""
    micro_batch: int | None = None
    """Images a device computes at once; a batch is accumulated from several."""
    spread: Spread = "ddp"
    """With several processes: ddp, fsdp or hybrid."""
    workers: int | None = None
    """Threads that read and decode images; all cores when None."""
    checkpoint_minutes: float = 5.0
    """Time between checkpoints, beside those after evaluations."""
    damage_limit: int = 100
    """Damaged images that are named and skipped before the run stops."""


@dataclass(frozen=True)
class Result:
    """What a run came to."""

    folder: Path
    finished: bool
    summary: dict[str, Any]


def train(
    recipe: Recipe,
    *,
    data: str | Path | None = None,
    folder: str | Path | None = None,
    machine: Machine | None = None,
    fresh: bool = False,
    quiet: bool = False,
) -> Result:
    """Trains a recipe into a folder; the same call resumes what was interrupted."""
    machine = machine or Machine()
    if data is not None:
        recipe = replace(recipe, data=str(data))
    place = RunFolder(Path(folder or Path("runs") / run_name(recipe)).expanduser())
    with processes(machine.device) as team, Interruption() as interruption:
        machine = settle(machine, team)
        if fresh and team.leads:
            shutil.rmtree(place.path, ignore_errors=True)
        place.claim(recipe, vars_of(machine), team)
        done = place.finished()
        if done is not None:
            return Result(place.path, True, done)
        splits = open_data(recipe)
        journal = Journal(place, recipe, team, quiet=quiet)
        training = Training(recipe, machine, team, place, splits, journal)
        with journal:
            return training.run_to_end(interruption)


class Training:
    """One process's part of a run: what it holds, and the loop over it."""

    def __init__(
        self,
        recipe: Recipe,
        machine: Machine,
        team: Processes,
        place: RunFolder,
        splits: Splits,
        journal: Journal,
    ) -> None:
        self.recipe, self.machine, self.team = recipe, machine, team
        self.place, self.splits, self.journal = place, splits, journal
        self.num_classes = len(splits.train.classes)
        self.per_epoch = steps_per_epoch(len(splits.train), recipe.batch_size)
        self.num_steps = self.per_epoch * recipe.epochs
        self.precision = PRECISIONS[machine.precision or "fp32"]
        self.damage = Damage(machine.damage_limit)
        self.run = new_run(recipe, machine, team, self.num_classes)
        self.writer = CheckpointWriter(place.checkpoints, team, journal.tell)
        self.objective = build_objective(recipe, team.device)
        compiled = bool(machine.compile)
        self.augment = torch.compile(augment, fullgraph=True) if compiled else augment
        self.forward = torch.compile(self.run.model) if compiled else self.run.model
        augmentation = recipe.augmentation
        self.prepare = Preparation(augmentation.mean, augmentation.std)

    def run_to_end(self, interruption: "Interruption") -> Result:
        """Trains until all steps are done, or until told to stop."""
        run, recipe, journal = self.run, self.recipe, self.journal
        self.resume()
        batches, validation = self.open_batches()
        journal.start(run, self.num_steps, self.per_epoch, batches.description)
        saved_at = time.monotonic()
        skipped_in_a_row = 0
        for batch in batches.steps(run.step, self.num_steps):
            share = lr_share(recipe.schedule, run.step / self.per_epoch, recipe.epochs)
            set_lr(run.optimizers, share)
            loss, norm, stepped = self.train_step(batch)
            skipped_in_a_row = 0 if stepped else skipped_in_a_row + 1
            journal.step(run, loss, norm, stepped)
            self.stop_if_broken(skipped_in_a_row)
            epoch, into = divmod(run.step, self.per_epoch)
            last = run.step == self.num_steps
            evaluated = into == 0 and (last or epoch % recipe.evaluate_every == 0)
            if evaluated:
                self.evaluate(validation, epoch)
            waited = time.monotonic() - saved_at > 60 * self.machine.checkpoint_minutes
            stopping = self.any_of(interruption.asked)
            if (evaluated or stopping or self.any_of(waited)) and not last:
                self.writer.save(run.state(), run.step)
                saved_at = time.monotonic()
            if stopping and not last:
                self.writer.finish()
                journal.interrupted(run)
                return Result(self.place.path, False, journal.summary(run))
        return self.finish()

    def train_step(self, batch: Batch) -> tuple[float, float, bool]:
        """One step of the optimizers; left out where the gradient is not finite."""
        run, recipe, team = self.run, self.recipe, self.team
        torch.manual_seed(step_seed(recipe.seed, run.step, team.rank))
        draws = Draws.of(recipe.seed, run.step, batch.keys)
        images, targets = self.augment(
            batch.images, batch.labels, draws, recipe.augmentation, self.num_classes
        )
        size = self.machine.micro_batch or len(images)
        parts = list(zip(images.split(size), targets.split(size), strict=True))
        run.model.train()
        total = torch.zeros((), device=team.device)
        for number, (some, wanted) in enumerate(parts, start=1):
            self.accumulate_only(number < len(parts))
            with autocast(team.device, self.precision):
                loss = self.objective(self.forward, some, wanted)
            share = len(some) / len(images)
            run.scaler.scale(loss * share).backward()
            total += loss.detach() * share
        norm = self.gradient_norm()
        total = sum_over_all(total, team) / team.world_size
        loss_now, norm_now = torch.stack([total, norm]).tolist()
        stepped = norm_now < float("inf")  # False for NaN too
        for optimizer in run.optimizers:
            if stepped:
                optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        run.scaler.update()
        run.step += 1
        if stepped:
            update_average(run, recipe.average)
        else:
            run.num_skipped += 1
        return loss_now, norm_now, stepped

    def gradient_norm(self) -> Tensor:
        """The norm of the gradient, clipped where the recipe says so."""
        run = self.run
        for optimizer in run.optimizers:
            run.scaler.unscale_(optimizer)
        limit = self.recipe.optimizer.clip_norm or float("inf")
        norm = nn.utils.clip_grad_norm_(run.model.parameters(), limit, foreach=True)
        full = getattr(norm, "full_tensor", None)
        return full() if full is not None else norm

    def accumulate_only(self, enabled: bool) -> None:
        """Keeps gradients here until the last micro-batch of a step."""
        model = self.run.model
        if hasattr(model, "require_backward_grad_sync"):
            model.require_backward_grad_sync = not enabled
        elif hasattr(model, "set_requires_gradient_sync"):
            model.set_requires_gradient_sync(not enabled)

    def evaluate(self, validation: Any, epoch: int) -> None:
        """Scores the raw and the averaged model, and keeps the averaged one."""
        run = self.run
        scores: dict[str, Score] = {}
        models = {"raw": run.plain, "averaged": run.average}
        for name, model in models.items():
            if model is not None:
                scores[name] = evaluate(
                    model,
                    validation,
                    self.prepare,
                    self.num_classes,
                    self.team,
                    self.precision,
                )
        self.journal.epoch(run, epoch, scores)
        if self.team.leads:
            self.save_model()

    def save_model(self) -> None:
        """Writes the model that a run delivers, with all that using it needs."""
        recipe = self.recipe
        save(
            self.run.delivered,
            self.place.path / "model.safetensors",
            name=recipe.model,
            class_names=self.splits.train.classes,
            extra={
                "image_size": list(recipe.image_size),
                "channels": recipe.channels,
                "mean": list(recipe.augmentation.mean),
                "std": list(recipe.augmentation.std),
                "crop_fraction": recipe.crop.evaluation_fraction,
                "data": recipe.data,
            },
        )

    def resume(self) -> None:
        """Takes up the newest whole checkpoint, where there is one."""
        found = newest_whole(self.place.checkpoints, self.journal.tell)
        if found is not None:
            state = self.run.state()
            read(found, state)
            self.run.restore(state)
        self.journal.resume(self.run.step)

    def open_batches(self) -> tuple[Batches, Any]:
        """Training batches, and the validation images in order."""
        recipe, team = self.recipe, self.team
        feeding = Feeding(num_workers=self.machine.workers)
        whole = CenterCrop(
            size=recipe.image_size, fraction=recipe.crop.evaluation_fraction
        )
        crop = RandomCrop(
            size=recipe.image_size,
            scale=recipe.crop.scale,
            ratio=recipe.crop.ratio,
            interpolation=recipe.crop.interpolation,
        )
        common: dict[str, Any] = {
            "device": team.device,
            "rank": team.rank,
            "world_size": team.world_size,
            "channels": recipe.channels,
            "damage": self.damage,
            "feeding": feeding,
        }
        batches = open_batches(
            self.splits.train,
            batch_size=recipe.batch_size,
            crop=crop if recipe.crop.kind == "random" else whole,
            seed=recipe.seed,
            repeats=recipe.repeats,
            **common,
        )
        num = min(recipe.batch_size, len(self.splits.val))
        validation = evaluation_batches(
            self.splits.val, batch_size=num, crop=whole, **common
        )
        return batches, validation

    def stop_if_broken(self, skipped_in_a_row: int) -> None:
        """Ends a run that has stopped learning, with advice."""
        most = MOST_SKIPPED[self.machine.precision or "fp32"]
        if skipped_in_a_row < most:
            return
        self.writer.finish()
        raise UserError(
            f"The gradient was not finite {skipped_in_a_row} steps in a row (step "
            f"{self.run.step}), so training stopped with its last checkpoint kept. Try "
            "a lower optimizer.lr, a longer schedule.warmup_epochs, "
            "optimizer.clip_norm=1, or --precision fp32."
        )

    def any_of(self, flag: bool) -> bool:
        """Whether any process says so."""
        if not self.team.many:
            return flag
        told = torch.tensor(float(flag), device=self.team.device)
        return bool(sum_over_all(told, self.team) > 0)

    def finish(self) -> Result:
        """Writes down the result, once the last step is done."""
        self.writer.finish()
        summary = self.journal.summary(self.run)
        if self.team.leads:
            self.place.finish(summary)
            shutil.rmtree(self.place.checkpoints, ignore_errors=True)
        return Result(self.place.path, True, summary)


def new_run(recipe: Recipe, machine: Machine, team: Processes, classes: int) -> Run:
    """A run at step 0."""
    torch.manual_seed(recipe.seed)
    model = create_model(
        recipe.model,
        num_classes=classes,
        image_size=recipe.image_size,
        in_channels=recipe.channels,
        drop_path=recipe.drop_path,
        **recipe.choices,
    ).to(team.device)
    if recipe.weights is not None:
        load_weights(model, recipe.weights)
    spread = spread_model(model, machine.spread, team)
    plain = getattr(spread, "module", spread)
    scaler = torch.amp.GradScaler(team.device.type, enabled=machine.precision == "fp16")
    optimizers = build_optimizers(plain, recipe)
    return Run(spread, new_average(plain, recipe.average), optimizers, scaler)


def open_data(recipe: Recipe) -> Splits:
    """The images of a recipe; some of the training set held out where it says so."""
    splits = open_splits(recipe.data, seed=recipe.seed)
    if recipe.hold_out:
        kept, held = hold_out(splits.train, recipe.hold_out, recipe.seed)
        splits = replace(splits, train=kept, val=held)
    return splits


def settle(machine: Machine, team: Processes) -> Machine:
    """The machine with every open choice made for the device that was found."""
    on_cuda = team.device.type == "cuda"
    precision = machine.precision or ("bf16" if on_cuda else "fp32")
    choose("precision", precision, PRECISIONS)
    compiled = on_cuda if machine.compile is None else machine.compile
    return replace(
        machine, precision=precision, compile=compiled, device=team.device.type
    )


def vars_of(machine: Machine) -> dict[str, Any]:
    """The machine's settings that a record should tell."""
    names = ("precision", "compile", "micro_batch", "spread")
    return {name: getattr(machine, name) for name in names}


def run_name(recipe: Recipe) -> str:
    """A folder's name for a recipe."""
    return recipe.name if recipe.seed == 0 else f"{recipe.name}-seed{recipe.seed}"


def step_seed(seed: int, step: int, rank: int) -> int:
    """One number for what a step draws on its own: dropout and stochastic depth."""
    return ((seed * 1_000_003 + step) * 1_000_003 + rank) % 2**63


class Interruption:
    """Notes a request to stop (Ctrl-C, SIGTERM); a second Ctrl-C stops at once."""

    def __init__(self) -> None:
        self.asked = False
        self.before: dict[int, Any] = {}

    def __enter__(self) -> "Interruption":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self.before[number] = signal.signal(number, self.note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def note(self, number: int, frame: FrameType | None) -> None:
        """Remembers the first request and obeys the second."""
        if self.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.asked = True
