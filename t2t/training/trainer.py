"""The training loop: steps, evaluations and checkpoints until a run is finished."""

import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from t2t.data.batches import EvaluationBatches
from t2t.data.decoding.damage import Damage, DamagedImage, damage_limit
from t2t.data.sampler import Batch, steps_per_epoch
from t2t.data.sources import Splits
from t2t.errors import UserError
from t2t.tasks.checks import checked_metrics
from t2t.training.auto_compile import AutoCompile
from t2t.training.checkpoint import recipe_to_resume, resume
from t2t.training.checkpoint_files import checkpoints
from t2t.training.checkpoint_writer import CheckpointWriter
from t2t.training.compile_policy import CompileDecision
from t2t.training.distributed import (
    PARALLELISMS,
    World,
    all_gather_union,
    barrier,
    batch_norm_buffers,
    broadcast_from_main,
    broadcast_tensors,
)
from t2t.training.divergence import MAX_SKIPPED, divergence_advice
from t2t.training.evaluation.evaluate import Normalize, score_models
from t2t.training.folder_guard import FolderGuard
from t2t.training.forecast.advice import advice
from t2t.training.hang_watch import HangWatch
from t2t.training.initial_state import new_state
from t2t.training.loaders import class_weights, start_reading_images
from t2t.training.logging.run_logger import RunLogger
from t2t.training.model_saver import ModelSaver
from t2t.training.prepare import loader_options, prepare
from t2t.training.rank_times import RankTimes
from t2t.training.recipe import Recipe
from t2t.training.result import Result
from t2t.training.run_folder import RunFolder
from t2t.training.runtime import Runtime
from t2t.training.schedule import lr_factor, set_lr
from t2t.training.state import Snapshot
from t2t.training.step import Stepper
from t2t.training.step_result import PendingStep, Requests
from t2t.training.stop_signals import StopSignals

SAVING_PAYS = 20.0
"""After writing for t seconds, evaluations wait this many times t to write again."""


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
        compiling: CompileDecision,
    ) -> None:
        self.recipe, self.runtime, self.world = recipe, runtime, world
        self.run_folder, self.splits, self.logger = run_folder, splits, logger
        self.checkpoint = checkpoint
        self.per_epoch = steps_per_epoch(len(splits.train), recipe.batch_size)
        self.num_steps = self.per_epoch * recipe.epochs
        num_images = len(splits.train) + len(splits.val)
        limit = damage_limit(runtime.max_damaged, num_images)
        self.damage = Damage(limit, logger.warn)
        self.in_flight: deque[PendingStep] = deque()
        self.requests = Requests()
        """Requests of finished steps, or of this process."""
        if world.device.type == "cpu" and runtime.compile != "on":
            logger.clock.skip_warmup()
        self.writer = CheckpointWriter(
            run_folder.checkpoints, world, logger.warn, run_folder.is_lost
        )
        self.model_saver = ModelSaver(recipe, world, run_folder, splits, logger.warn)
        self.guard = FolderGuard(run_folder, world, logger, self.model_saver)
        start_reading_images(
            recipe, splits, world, loader_options(runtime), self.damage
        )
        initial = recipe if checkpoint is None else recipe_to_resume(recipe, checkpoint)
        classes, sets = splits.train.classes, splits.train.label_sets
        weights = class_weights(recipe, splits.train)
        self.state = new_state(
            initial, runtime, world, len(classes), classes, sets, weights
        )
        self.state.data = {
            "classes": list(classes),
            "num_images": len(splits.train),
            "fingerprint": splits.train.fingerprint(),
        }
        self.task = self.state.task
        self.watch = HangWatch(world, runtime.hang_minutes, logger.messages.note)
        self.times = RankTimes(world, logger.warn)
        self.stepper = Stepper(recipe, runtime, world, self.state, logger.warn)
        self.compiling = AutoCompile(compiling, self.stepper, run_folder, logger)
        augmentation = recipe.augmentation
        self.normalize = Normalize(augmentation.mean, augmentation.std)

    def run(
        self, stop: StopSignals, notes: Sequence[str] = (), is_timed: bool = False
    ) -> Result:
        """Trains until all steps are done, or until a signal to stop."""
        state, recipe, logger = self.state, self.recipe, self.logger
        if self.checkpoint is not None:
            saved_log = resume(state, self.checkpoint, self.world, logger.warn)
            logger.load_state_dict(saved_log)
        logger.resume(state.step, self.num_steps)
        self.compiling.resume()
        batches, validation = prepare(
            self.stepper,
            recipe.phases(state.step / self.num_steps),
            self.splits,
            self.damage,
            logger.console,
        )
        self.log_start(batches.description, notes, is_timed)
        stop.defer(logger.warn)
        # Only the result could not be written, or there are fewer images now.
        if state.step >= self.num_steps:
            self.evaluate(validation, recipe.epochs)
        elif logger.stopped_early(state):
            self.model_saver.save_model(state)
            return self.finish(stop)
        self.saved_at = time.monotonic()
        loaded = self.stepper.load(batches.steps(state.step, self.num_steps))
        for batch in self.times.timed(loaded):
            epoch = state.step / self.per_epoch
            set_lr(state.optimizers, lr_factor(recipe.schedule, epoch, recipe.epochs))
            progress = state.step / self.num_steps
            phase = recipe.phase_at(progress)
            if phase != self.stepper.phase:
                self.drain()
                self.stepper.set_phase(phase)
                logger.clock.restart_warmup()
            num_epochs, rest = divmod(state.step + 1, self.per_epoch)
            is_last = state.step + 1 == self.num_steps
            evaluates = rest == 0 and (
                is_last or num_epochs % recipe.evaluate_every == 0
            )
            self.take_step(batch, progress, stop, evaluates)
            pauses = evaluates or any(self.requests)
            self.drain(0 if pauses else 1)
            (stops, saves), self.requests = self.requests, Requests()
            if pauses:
                self.watch.pause()
                self.writer.finish()  # a collective, like `broadcast_from_main`
                self.guard.check(state)
                self.broadcast_batch_norms()
            if evaluates:
                self.evaluate(validation, num_epochs)
                if logger.stopped_early(state):
                    logger.log_early_stop(state)
                    break
            if rest == 0 and not is_last and self.compiling.is_due():
                self.drain()
                self.watch.pause()
                self.writer.finish()
                self.compiling.compile_if_it_pays()
            if (stops or saves) and not is_last:
                self.writer.save(self.snapshot())
                self.saved_at = time.monotonic()
            if stops and not is_last:
                self.writer.finish()
                logger.interrupted(state.step, has_checkpoint=not self.writer.failed)
                return Result(self.run_folder.path, False, logger.summary(state))
        return self.finish(stop)

    def take_step(
        self, batch: Batch, progress: float, stop: StopSignals, evaluates: bool
    ) -> None:
        """Starts a step, and finds what is requested before the next one.

        With several processes, requests travel with a step, and are known once the
        host reads its numbers: the device has its next step by then.
        """
        self.watch.start_step(self.state.step + 1)
        if self.world.is_distributed:
            own = self.own_requests(stop, evaluates)
            self.in_flight.append(self.stepper.start_step(batch, progress, own))
            self.drain(0 if evaluates or self.world.device.type == "cpu" else 1)
        else:
            self.in_flight.append(self.stepper.start_step(batch, progress))
            self.requests = self.own_requests(stop, evaluates)

    def own_requests(self, stop: StopSignals, evaluates: bool) -> Requests:
        """The requests of this process."""
        waited = time.monotonic() - self.saved_at
        saves = waited > 60 * self.runtime.checkpoint_minutes or (
            evaluates and waited > SAVING_PAYS * self.writer.seconds
        )
        return Requests(stop.received or self.logger.console.reader_is_gone, saves)

    def log_start(self, description: str, notes: Sequence[str], is_timed: bool) -> None:
        """Logs what is trained, and advice on it."""
        state, logger = self.state, self.logger
        # Before the clock starts, since it times a step; not if nothing is printed.
        advised = []
        if not logger.console.quiet:
            advised = advice(
                self.recipe,
                self.runtime,
                self.world,
                self.splits,
                state.step,
                is_timed,
            )
        logger.start(state, self.num_steps, self.per_epoch, description)
        if state.loaded is not None:
            (logger.warn if state.loaded.notes else logger.info)(str(state.loaded))
        for note in (*self.splits.notes, *self.task.notes):
            logger.warn(note)
        on_many = self.world.is_distributed and self.world.device.type == "cuda"
        for note in (*notes, *[self.stepper.launch] * on_many, *advised):
            logger.info(note)

    def snapshot(self) -> Snapshot:
        """The content of a checkpoint."""
        tensors, numbers = self.state.snapshot()
        return Snapshot(tensors, {**numbers, "log": self.logger.state_dict()})

    def save_before_giving_up(self) -> None:
        """Saves a checkpoint, as the data cannot be read any more.

        Not a sharded one: the other processes wait within a step.
        """
        sharded = self.world.is_distributed and PARALLELISMS[self.runtime.parallelism]
        if sharded or not self.state.step:
            return
        with suppress(UserError, OSError):
            self.drain()
            self.writer.finish()
            self.writer.save(self.snapshot())
            self.writer.finish()

    def drain(self, keep: int = 0) -> None:
        """Logs finished steps, and their requests, until `keep` are in flight."""
        while len(self.in_flight) > keep:
            step = self.in_flight.popleft().result()
            self.requests |= step.requests
            self.logger.log_step(step)
            self.stop_if_diverged(step.step)

    def evaluate(self, validation: EvaluationBatches, epoch: int) -> None:
        """Evaluates the raw model and the EMA, and saves the final model."""
        state = self.state
        models = {"raw": state.model}
        if state.ema is not None:
            models["ema"] = state.ema
        self.times.start_evaluation()
        values = score_models(
            self.task,
            models,
            validation,
            self.normalize,
            self.world,
            self.runtime.dtype,
            self.times.evaluation.lap,
        )
        scores = {name: checked_metrics(self.task, values[name]) for name in models}
        num_images = len(values["raw"]["index"])
        self.gather_damage()
        row = self.logger.log_evaluation(state.step, epoch, scores, num_images)
        is_best = state.best.update(self.logger.metrics[0], row, state.final_model)
        saver = self.model_saver
        if self.recipe.keep == "last" or is_best:
            saver.save_model(state)
        self.logger.clock.model_saved()
        self.logger.draw_if_due(state.step)
        self.logger.clock.end_evaluation()
        self.times.compare()

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
        """Ends a run that has diverged, or has not taken a single step, with advice."""
        num_skipped = self.state.num_skipped_in_a_row
        limit = MAX_SKIPPED[self.runtime.precision or "fp32"]
        if num_skipped < min(limit, self.num_steps):
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
        self.watch.pause()
        self.writer.finish()
        self.guard.check(self.state)
        saver, is_received = self.model_saver, lambda: stop.received
        if self.recipe.keep == "best":
            # After a resume, the file may be of an evaluation that was repeated.
            saver.save_model(self.state)
        broadcast_from_main(self.world, lambda: saver.retry(is_received))
        # All write a sharded checkpoint together, and only the main process knows.
        if broadcast_from_main(self.world, lambda: bool(saver.unsaved)):
            self.writer.save(self.snapshot())
            self.writer.finish()
        summary = {
            **self.logger.summary(self.state),
            **self.compiling.decision.settings(),
        }
        self.logger.metrics_log.flush()
        saver.save_best(self.state, is_received)
        barrier(self.world)
        broadcast_from_main(self.world, lambda: saver.finish(summary, is_received))
        return Result(self.run_folder.path, True, summary)
