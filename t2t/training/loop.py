"""The training loop, top to bottom."""

import os
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from t2t.data.augment.policies import RandAugment
from t2t.data.batches import EvaluationBatches, LoaderOptions
from t2t.data.decoding.damage import Damage, DamagedImage
from t2t.data.sampler import steps_per_epoch
from t2t.data.sources import Splits
from t2t.errors import LocalError, UserError
from t2t.training.checkpoint import find_checkpoint, recipe_to_resume, resume
from t2t.training.checkpoint_files import checkpoints
from t2t.training.checkpoint_writer import CheckpointWriter
from t2t.training.distributed import (
    PARALLELISMS,
    World,
    all_gather_union,
    all_reduce_any,
    batch_norm_buffers,
    broadcast_from_main,
    broadcast_tensors,
    check_same_on_all,
    init_distributed,
    local_main_first,
    unsharded,
)
from t2t.training.divergence import MAX_SKIPPED, divergence_advice
from t2t.training.evaluation.evaluate import Normalize, evaluate
from t2t.training.folder_guard import FolderGuard
from t2t.training.forecast.advice import advice
from t2t.training.loaders import open_data, training_batches, validation_batches
from t2t.training.logging.run_logger import RunLogger
from t2t.training.model_saver import ModelSaver
from t2t.training.optim import lr_factor, set_lr
from t2t.training.recipe import Recipe
from t2t.training.rendezvous import is_peer_lost
from t2t.training.run_folder import RunFolder
from t2t.training.runtime import (
    Runtime,
    make_deterministic,
    resolve_runtime,
    runtime_settings,
    shared_settings,
)
from t2t.training.state import Snapshot, new_state
from t2t.training.step import Stepper
from t2t.training.step_result import PendingStep
from t2t.training.stop_signals import StopSignals
from t2t.training.threads import choose_threads, threads_of_run, use_threads

__all__ = ["Result", "Runtime", "Trainer", "train"]


@dataclass(frozen=True)
class Result:
    """The result of a call of `train`."""

    folder: Path
    finished: bool
    summary: dict[str, Any]
    already_finished: bool = False
    """Whether the run was finished before the call."""
    stop_requested: bool = False
    """Whether Ctrl-C, SIGTERM or SIGHUP was received, even if too late to matter."""


def train(
    recipe: Recipe,
    *,
    data: str | Path | None = None,
    folder: str | Path | None = None,
    runtime: Runtime | None = None,
    fresh: bool = False,
    quiet: bool = False,
    splits: Splits | None = None,
    notes: Sequence[str] = (),
) -> Result:
    """Trains a recipe into a folder; the same call resumes an interrupted run.

    `runtime` sets device and precision, `fresh` starts over, `quiet` prints nothing,
    `splits` are the recipe's images if the caller has opened them already, and `notes`
    are sentences for the log at the start of the run.
    """
    if data is not None:
        recipe = replace(recipe, data=str(data))
    path = folder or Path("runs") / run_name(recipe)
    run_folder = RunFolder(Path(os.path.expanduser(path)))
    runtime = runtime or Runtime()
    with (
        # Outermost: torchrun sends SIGTERM to processes that still have to report.
        StopSignals() as stop,
        init_distributed(runtime.device) as world,
        ExitStack() as exits,
    ):
        runtime = resolve_runtime(runtime, world)
        make_deterministic(runtime)
        # Check the augmentation before building anything.
        RandAugment.of(recipe.augmentation)
        recipe.augmentation.mix_group_for(recipe.batch_size // world.size)

        def claim_folder() -> dict[str, Any] | None:
            exits.enter_context(run_folder.hold())
            return check_folder(run_folder, recipe, fresh)

        finished = broadcast_from_main(world, claim_folder)
        if finished is not None:
            return Result(run_folder.path, True, finished, already_finished=True)
        if splits is None:
            splits = local_main_first(world, lambda: open_data(recipe))
        check_same_on_all(world, shared_settings(recipe, runtime, world, splits, fresh))
        logger = exits.enter_context(RunLogger(run_folder, recipe, world, quiet=quiet))
        checkpoint = None
        if not fresh:
            checkpoint = find_checkpoint(run_folder.checkpoints, world, logger.warn)
            if checkpoint is None and run_folder.has_started():
                logger.warn(
                    f"There is no checkpoint in {run_folder.checkpoints}: training "
                    "starts again from step 0."
                )
        settings = runtime_settings(runtime)
        if world.device.type == "cpu":
            before = threads_of_run(run_folder.path) if checkpoint else None
            threads = choose_threads(runtime.threads, before)
            exits.enter_context(use_threads(threads))
            settings["threads"] = threads.number
            notes = (*notes, str(threads))
        trainer = Trainer(
            recipe, runtime, world, run_folder, splits, logger, checkpoint
        )
        # All is built: from here on, no mistake in a recipe can stop the run.
        broadcast_from_main(
            world, lambda: run_folder.start(recipe, settings, world, fresh)
        )
        if PARALLELISMS[runtime.parallelism]:
            run_folder.check_visible(world)
        with trainer.writer, explain_out_of_memory(trainer):
            try:
                result = trainer.run(stop, notes)
                return replace(result, stop_requested=stop.received)
            except Exception as error:
                known = isinstance(error, UserError | torch.OutOfMemoryError)
                if known or is_peer_lost(error) or not stop.received:
                    raise
                # Ctrl-C also ends compilers that the first step waits for.
                logger.warn(f"Stopped within a step ({type(error).__name__}).")
                return Result(run_folder.path, False, logger.summary(trainer.state))


def check_folder(
    run_folder: RunFolder, recipe: Recipe, fresh: bool
) -> dict[str, Any] | None:
    """Checks that a recipe can be trained in a folder; the result if it was before."""
    run_folder.check(recipe, fresh)
    run_folder.remove_partial_files()
    if fresh or not run_folder.has_started():
        recipe.check_weights()
    finished = None if fresh else run_folder.result()
    if finished is not None:
        run_folder.check_model()
    return finished


@contextmanager
def explain_out_of_memory(trainer: "Trainer") -> Iterator[None]:
    """Says what to do if the device's memory does not suffice."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        world = trainer.world
        per_process = trainer.recipe.batch_size // world.size
        num_images = min(trainer.runtime.micro_batch or per_process, per_process)
        raise LocalError(
            f"The memory of {world.device} does not suffice for {num_images} images "
            f"at once: add --micro-batch {max(1, num_images // 2)}, which computes "
            "the step in parts (the same except for dropout, stochastic depth "
            "and batch norm), or choose smaller images or a smaller model."
            + (" Its checkpoints are kept." * bool(trainer.last_checkpoint))
        ) from error


class Trainer:
    """One process's part of a run."""

    def __init__(
        self,
        recipe: Recipe,
        runtime: Runtime,
        world: World,
        run_folder: RunFolder,
        splits: Splits,
        logger: RunLogger,
        checkpoint: Path | None,
    ) -> None:
        self.recipe, self.runtime, self.world = recipe, runtime, world
        self.run_folder, self.splits, self.logger = run_folder, splits, logger
        self.checkpoint = checkpoint
        self.per_epoch = steps_per_epoch(len(splits.train), recipe.batch_size)
        self.num_steps = self.per_epoch * recipe.epochs
        self.damage = Damage(runtime.damage_limit, logger.warn)
        self.in_flight: deque[PendingStep] = deque()
        if world.device.type == "cpu" and not runtime.compile:
            logger.clock.skip_warmup()
        self.writer = CheckpointWriter(run_folder.checkpoints, world, logger.warn)
        self.model_saver = ModelSaver(recipe, world, run_folder, splits, logger.warn)
        self.guard = FolderGuard(run_folder, world, logger, self.model_saver)
        initial = recipe if checkpoint is None else recipe_to_resume(recipe, checkpoint)
        classes = splits.train.classes
        self.state = new_state(initial, runtime, world, len(classes), classes)
        self.state.data = {
            "classes": list(classes),
            "num_images": len(splits.train),
            "fingerprint": splits.train.fingerprint(),
        }
        self.task = self.state.task
        self.stepper = Stepper(recipe, runtime, world, self.state, logger.warn)
        augmentation = recipe.augmentation
        self.normalize = Normalize(augmentation.mean, augmentation.std)

    def run(self, stop: StopSignals, notes: Sequence[str] = ()) -> Result:
        """Trains until all steps are done, or until a signal to stop."""
        state, recipe, logger = self.state, self.recipe, self.logger
        if self.checkpoint is not None:
            saved_log = resume(state, self.checkpoint, self.world, logger.warn)
            logger.load_state_dict(saved_log)
        logger.resume(state.step, self.num_steps)
        loader_options = LoaderOptions(
            num_workers=self.runtime.workers, max_pixels=self.runtime.max_pixels
        )
        common = (self.world, loader_options, self.damage)
        batches = training_batches(recipe, self.splits.train, *common, self.task)
        micro_batch = self.runtime.micro_batch
        validation = validation_batches(recipe, self.splits.val, *common, micro_batch)
        self.log_start(batches.description, notes)
        stop.defer(logger.warn)
        # Only the result could not be written, or there are fewer images now.
        if state.step >= self.num_steps:
            self.evaluate(validation, recipe.epochs)
        saved_at = time.monotonic()
        for batch in batches.steps(state.step, self.num_steps):
            epoch = state.step / self.per_epoch
            set_lr(state.optimizers, lr_factor(recipe.schedule, epoch, recipe.epochs))
            progress = state.step / self.num_steps
            phase = recipe.phase_at(progress)
            if phase != self.stepper.phase:
                self.drain()
                self.stepper.set_phase(phase)
                logger.clock.restart_warmup()
            self.in_flight.append(self.stepper.start_step(batch, progress))
            num_epochs, rest = divmod(state.step, self.per_epoch)
            is_last = state.step == self.num_steps
            evaluates = rest == 0 and (
                is_last or num_epochs % recipe.evaluate_every == 0
            )
            waited = time.monotonic() - saved_at > 60 * self.runtime.checkpoint_minutes
            received = stop.received or logger.console.reader_is_gone
            stops, saves = all_reduce_any((received, waited), self.world)
            # The device has its next step before the host reads this one's numbers.
            pauses = evaluates or stops or saves
            self.drain(0 if pauses else 1)
            if pauses:
                self.writer.finish()  # a collective, like `broadcast_from_main`
                self.guard.check(state)
                self.broadcast_batch_norms()
            if evaluates:
                self.evaluate(validation, num_epochs)
            if pauses and not is_last:
                self.writer.save(self.snapshot())
                saved_at = time.monotonic()
            if stops and not is_last:
                self.writer.finish()
                logger.interrupted(state.step, has_checkpoint=not self.writer.failed)
                return Result(self.run_folder.path, False, logger.summary(state))
        return self.finish(stop)

    def log_start(self, description: str, notes: Sequence[str]) -> None:
        """Logs what is trained, and advice on it."""
        state, logger = self.state, self.logger
        # Before the clock starts, since it times a step; not if nothing is printed.
        advised = []
        if not logger.console.quiet:
            advised = advice(
                self.recipe, self.runtime, self.world, self.splits, state.step
            )
        logger.start(state, self.num_steps, self.per_epoch, description)
        if state.loaded is not None:
            (logger.warn if state.loaded.notes else logger.info)(str(state.loaded))
        for note in self.splits.notes:
            logger.warn(note)
        for note in (*notes, *advised):
            logger.info(note)

    def snapshot(self) -> Snapshot:
        """The content of a checkpoint."""
        tensors, numbers = self.state.snapshot()
        return Snapshot(tensors, {**numbers, "log": self.logger.state_dict()})

    def drain(self, keep: int = 0) -> None:
        """Logs finished steps until at most `keep` are in flight."""
        while len(self.in_flight) > keep:
            step = self.in_flight.popleft().result()
            self.logger.log_step(step)
            self.stop_if_diverged(step.step)

    def evaluate(self, validation: EvaluationBatches, epoch: int) -> None:
        """Evaluates the raw model and the EMA, and saves the final model."""
        state = self.state
        scores: dict[str, dict[str, float]] = {}
        self.task.eval()
        for name, model in {"raw": state.model, "ema": state.ema}.items():
            if model is not None:
                with unsharded(self.task), unsharded(model):
                    values = evaluate(
                        model,
                        validation,
                        self.normalize,
                        self.task.score,
                        self.world,
                        self.stepper.precision,
                    )
                scores[name] = self.task.summarize(values)
                num_images = len(values["index"])
        self.gather_damage()
        self.logger.log_evaluation(state.step, epoch, scores, num_images)
        self.model_saver.save_model(state.final_model)
        self.logger.clock.end_evaluation()

    def broadcast_batch_norms(self) -> None:
        """Makes all processes use the main process's batch norm statistics.

        Each process counts its own images, and training steps do not use the counts.
        """
        for model in (self.state.task, self.state.ema):
            if model is not None:
                broadcast_tensors(batch_norm_buffers(model), self.world)

    def gather_damage(self) -> None:
        """Reports damaged images of all processes, and counts them in each."""
        for name, reason in all_gather_union(self.damage.reasons, self.world):
            self.damage.record(DamagedImage(name, reason))

    def stop_if_diverged(self, step: int) -> None:
        """Ends a run that has diverged, with advice."""
        num_skipped = self.state.num_skipped_in_a_row
        if num_skipped < MAX_SKIPPED[self.runtime.precision or "fp32"]:
            return
        self.writer.finish()
        raise UserError(
            f"The gradient was not finite {num_skipped} steps in a row "
            f"(step {step}), so training stopped. "
            + divergence_advice(
                self.recipe, self.runtime, self.run_folder.path, self.last_checkpoint
            )
        )

    @property
    def last_checkpoint(self) -> Path | None:
        """The newest checkpoint, if there is one."""
        return next(iter(checkpoints(self.run_folder.checkpoints)), None)

    def finish(self, stop: StopSignals) -> Result:
        """Writes the result after the last step and its evaluation."""
        self.writer.finish()
        self.guard.check(self.state)
        saver, is_received = self.model_saver, lambda: stop.received
        broadcast_from_main(self.world, lambda: saver.retry(is_received))
        # All write a sharded checkpoint together, and only the main process knows.
        if broadcast_from_main(self.world, lambda: bool(saver.unsaved)):
            self.writer.save(self.snapshot())
            self.writer.finish()
        summary = self.logger.summary(self.state)
        self.logger.flush()
        broadcast_from_main(self.world, lambda: saver.finish(summary, is_received))
        return Result(self.run_folder.path, True, summary)


def run_name(recipe: Recipe) -> str:
    """The name of a recipe's folder."""
    return recipe.name if recipe.seed == 0 else f"{recipe.name}-seed{recipe.seed}"
