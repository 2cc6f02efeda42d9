"""The training loop, top to bottom."""

import os
import time
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
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
from t2t.training.checkpoint import (
    CheckpointWriter,
    as_resumed,
    checkpoints,
    find_checkpoint,
    resume,
)
from t2t.training.distributed import (
    PARALLELISMS,
    World,
    any_over_all,
    batch_statistics,
    check_alike,
    from_main,
    gathered,
    init_distributed,
    one_per_node_first,
    share_statistics,
    union_over_all,
)
from t2t.training.divergence import after_divergence
from t2t.training.evaluation.evaluate import Preparation, evaluate
from t2t.training.forecast.advice import advice
from t2t.training.interruption import Interruption
from t2t.training.loaders import open_data, training_batches, validation_batches
from t2t.training.logging.run_logger import RunLogger
from t2t.training.model_saver import ModelSaver
from t2t.training.optim import lr_share, set_lr
from t2t.training.recipe import Recipe
from t2t.training.rendezvous import is_peer_lost
from t2t.training.run_folder import RunFolder
from t2t.training.runtime import (
    Runtime,
    make_deterministic,
    plans_of,
    resolve_runtime,
    vars_of,
)
from t2t.training.state import State, new_state
from t2t.training.step import PendingStep, Stepper
from t2t.training.threads import choose_threads, threads_before, use_threads

__all__ = ["Result", "Runtime", "Training", "train"]

# fp16 starts by finding its scale: a few steps are left out on the way.
MOST_SKIPPED = {"bf16": 5, "fp32": 5, "fp16": 25}


@dataclass(frozen=True)
class Result:
    """What a run came to."""

    folder: Path
    finished: bool
    summary: dict[str, Any]
    was_finished: bool = False
    """Whether there was nothing left to do."""
    asked_to_stop: bool = False
    """Whether Ctrl-C or SIGTERM came, be it too late to keep the run from its end."""


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
    """Trains a recipe into a folder; the same call resumes what was interrupted.

    `machine` sets device and precision, `fresh` starts over, `quiet` prints nothing,
    `splits` are the recipe's images if the caller has opened them already, and `notes`
    are sentences for the log at the start of the run.
    """
    runtime = runtime or Runtime()
    if data is not None:
        recipe = replace(recipe, data=str(data))
    where = folder or Path("runs") / run_name(recipe)
    run_folder = RunFolder(Path(os.path.expanduser(where)))
    with (
        # All around, since torchrun sends SIGTERM to who is left and has yet to speak.
        Interruption() as interruption,
        init_distributed(runtime.device) as world,
        ExitStack() as leaving,
    ):
        settled = resolve_runtime(runtime, world)
        make_deterministic(settled)
        # Check the augmentation before building anything.
        RandAugment.of(recipe.augmentation)
        recipe.augmentation.mix_group_for(recipe.batch_size // world.size)

        def claim() -> dict[str, Any] | None:
            leaving.enter_context(run_folder.held())
            run_folder.check(recipe, fresh)
            run_folder.sweep()
            if fresh or not run_folder.has_begun():
                recipe.check_weights()
            done = None if fresh else run_folder.finished()
            if done is not None:
                run_folder.check_model()
            return done

        done = from_main(world, claim)
        if done is not None:
            return Result(run_folder.path, True, done, was_finished=True)
        if splits is None:
            splits = one_per_node_first(world, lambda: open_data(recipe))
        check_alike(world, plans_of(recipe, settled, world, splits, fresh))
        logger = leaving.enter_context(
            RunLogger(run_folder, recipe, world, quiet=quiet)
        )
        found = None
        if not fresh:
            found = find_checkpoint(run_folder.checkpoints, world, logger.warn)
            if found is None and run_folder.has_begun():
                logger.warn(
                    f"There is no checkpoint in {run_folder.checkpoints}: training "
                    "starts again from step 0."
                )
        about = vars_of(settled)
        if world.device.type == "cpu":
            before = threads_before(run_folder.path) if found else None
            threads = choose_threads(settled.threads, before)
            leaving.enter_context(use_threads(threads))
            about["threads"] = threads.number
            notes = (*notes, str(threads))
        training = Training(recipe, settled, world, run_folder, splits, logger, found)
        training.notes = notes
        # All is built, so nothing that a recipe lacks can stop the run any more.
        from_main(world, lambda: run_folder.begin(recipe, about, world, fresh))
        if PARALLELISMS[settled.parallelism]:
            run_folder.check_seen(world)
        with training.writer:
            try:
                result = training.run_to_end(interruption)
                return replace(result, asked_to_stop=interruption.asked)
            except torch.OutOfMemoryError as error:
                share = recipe.batch_size // world.size
                held = min(settled.micro_batch or share, share)
                raise LocalError(
                    f"The memory of {world.device} does not suffice for {held} images "
                    f"at once: add --micro-batch {max(1, held // 2)}, which computes "
                    "the step in parts (the same except for dropout, stochastic depth "
                    "and batch norm), or choose smaller images or a smaller model."
                    + (" Its checkpoints are kept." * bool(training.last_checkpoint))
                ) from error
            except Exception as error:
                known = isinstance(error, UserError) or is_peer_lost(error)
                if known or not interruption.asked:
                    raise
                # Ctrl-C also ends compilers that the first step waits for.
                logger.warn(f"Stopped within a step ({type(error).__name__}).")
                return Result(run_folder.path, False, logger.summary(training.state))


class Training:
    """One process's part of a run: what it holds, and the loop over it."""

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
        self.num_classes = len(splits.train.classes)
        self.per_epoch = steps_per_epoch(len(splits.train), recipe.batch_size)
        self.num_steps = self.per_epoch * recipe.epochs
        self.damage = Damage(runtime.damage_limit, logger.warn)
        self.in_flight: deque[PendingStep] = deque()
        self.notes: Sequence[str] = ()
        if world.device.type == "cpu" and not runtime.compile:
            logger.clock.count_all()
        self.writer = CheckpointWriter(run_folder.checkpoints, world, logger.warn)
        self.model_saver = ModelSaver(recipe, world, run_folder, splits, logger.warn)
        begun = recipe if checkpoint is None else as_resumed(recipe, checkpoint)
        names = splits.train.classes
        self.state = new_state(begun, runtime, world, self.num_classes, names)
        self.state.data = {
            "classes": list(splits.train.classes),
            "num_images": len(splits.train),
            "fingerprint": splits.train.fingerprint(),
        }
        self.task = self.state.task
        self.stepper = Stepper(recipe, runtime, world, self.state, logger.warn)
        augmentation = recipe.augmentation
        self.prepare = Preparation(augmentation.mean, augmentation.std)

    def run_to_end(self, interruption: Interruption) -> Result:
        """Trains until all steps are done, or until told to stop."""
        state, recipe, logger = self.state, self.recipe, self.logger
        if self.checkpoint is not None:
            logger.restore(resume(state, self.checkpoint, self.world, logger.warn))
        logger.resume(state.step, self.num_steps)
        loader_options = LoaderOptions(
            num_workers=self.runtime.workers, max_pixels=self.runtime.max_pixels
        )
        given = (self.world, loader_options, self.damage)
        batches = training_batches(recipe, self.splits.train, *given, self.task)
        micro_batch = self.runtime.micro_batch
        validation = validation_batches(recipe, self.splits.val, *given, micro_batch)
        # Before the clock starts, since it times a step; not if nothing is printed.
        advised = []
        if not logger.console.quiet:
            advised = advice(recipe, self.runtime, self.world, self.splits, state.step)
        logger.start(state, self.num_steps, self.per_epoch, batches.description)
        if state.loaded is not None:
            (logger.warn if state.loaded.notes else logger.info)(str(state.loaded))
        for note in self.splits.notes:
            logger.warn(note)
        for note in (*self.notes, *advised):
            logger.info(note)
        interruption.wait_for_steps(logger.warn)
        # Only the result could not be written, or there are fewer images now.
        if state.step >= self.num_steps:
            self.evaluate(validation, recipe.epochs)
        saved_at = time.monotonic()
        for batch in batches.steps(state.step, self.num_steps):
            at_epoch = state.step / self.per_epoch
            share = lr_share(recipe.schedule, at_epoch, recipe.epochs)
            set_lr(state.optimizers, share)
            progress = state.step / self.num_steps
            phase = recipe.phase_at(progress)
            if phase != self.stepper.phase:
                self.drain()
                self.stepper.set_phase(phase)
                logger.clock.cool()
            self.in_flight.append(self.stepper.start_step(batch, progress))
            epoch, into = divmod(state.step, self.per_epoch)
            last = state.step == self.num_steps
            evaluated = into == 0 and (last or epoch % recipe.evaluate_every == 0)
            waited = time.monotonic() - saved_at > 60 * self.runtime.checkpoint_minutes
            asked = interruption.asked or logger.console.is_unheard
            stopping, due = any_over_all((asked, waited), self.world)
            # The device has its next step before we look at what came of this one.
            pauses = evaluated or stopping or due
            self.drain(0 if pauses else 1)
            if pauses:
                self.writer.finish()  # a collective, like `from_leader`
                self.keep_folder()
                self.share_statistics()
            if evaluated:
                self.evaluate(validation, epoch)
            if pauses and not last:
                self.writer.save(self.checkpoint_state())
                saved_at = time.monotonic()
            if stopping and not last:
                self.writer.finish()
                logger.interrupted(state.step, has_checkpoint=not self.writer.failed)
                return Result(self.run_folder.path, False, logger.summary(state))
        return self.finish(interruption)

    def checkpoint_state(self) -> State:
        """The content of a checkpoint."""
        tensors, numbers = self.state.state()
        return State(tensors, {**numbers, "log": self.logger.state()})

    def drain(self, keep: int = 0) -> None:
        """Logs finished steps until at most `keep` are in flight."""
        while len(self.in_flight) > keep:
            step = self.in_flight.popleft().result()
            self.logger.log_step(step)
            self.stop_if_diverged(step.step)

    def evaluate(self, validation: EvaluationBatches, epoch: int) -> None:
        """Evaluates the raw model and the EMA, and saves what the run delivers."""
        state = self.state
        scores: dict[str, dict[str, float]] = {}
        self.task.eval()
        for name, model in {"raw": state.model, "ema": state.ema}.items():
            if model is not None:
                with gathered(self.task), gathered(model):
                    values = evaluate(
                        model,
                        validation,
                        self.prepare,
                        self.task.score,
                        self.world,
                        self.stepper.precision,
                    )
                scores[name] = self.task.summarize(values)
                num_images = len(values["index"])
        self.share_damage()
        self.logger.log_evaluation(state.step, epoch, scores, num_images)
        self.model_saver.save_model(state.delivered)
        self.logger.clock.evaluated()

    def share_statistics(self) -> None:
        """Has all judge by, and keep, what the leading process's batch norms counted.

        Each counts its own images, and no step of training looks at what was counted.
        """
        for model in (self.state.task, self.state.ema):
            if model is not None:
                share_statistics(batch_statistics(model), self.world)

    def share_damage(self) -> None:
        """Lets the leading process name what others skipped, and all count it."""
        for name, reason in union_over_all(self.damage.reasons, self.world):
            self.damage.record(DamagedImage(name, reason))

    def stop_if_diverged(self, step: int) -> None:
        """Ends a run that has stopped learning, with advice."""
        most = MOST_SKIPPED[self.runtime.precision or "fp32"]
        num_skipped = self.state.num_skipped_in_a_row
        if num_skipped < most:
            return
        self.writer.finish()
        raise UserError(
            f"The gradient was not finite {num_skipped} steps in a row "
            f"(step {step}), so training stopped. "
            + after_divergence(
                self.recipe, self.runtime, self.run_folder.path, self.last_checkpoint
            )
        )

    @property
    def last_checkpoint(self) -> Path | None:
        """The newest checkpoint, if there is one."""
        return next(iter(checkpoints(self.run_folder.checkpoints)), None)

    def keep_folder(self) -> None:
        """Recreates the run's folder if it was removed or moved while training.

        If that fails, the run ends, and its model is saved elsewhere.
        """

        def look() -> str:
            if not self.run_folder.is_lost():
                restored = (
                    self.run_folder.restore_pages() + self.logger.restore_metrics()
                )
                for path in restored:
                    self.logger.warn(
                        f"{path} was removed while training; it was written again."
                    )
                return ""
            try:
                self.run_folder.make_again()
            except UserError as error:
                return str(error)
            self.logger.make_again()
            self.logger.warn(
                f"{self.run_folder.path} or a file in it was removed or moved while "
                "training; it was recreated, and training continues."
            )
            return ""

        trouble = from_main(self.world, look)
        if not trouble:
            return
        model = self.model_saver.gather(self.state.delivered)
        if model is not None:
            self.model_saver.save_elsewhere(model)
        where = from_main(self.world, lambda: self.model_saver.elsewhere)
        saved = f"its model was saved to {where}" if where else "nothing could be saved"
        raise UserError(
            f"{self.run_folder.path} was removed or moved while training, and cannot "
            f"be recreated: {trouble} Training stopped after step {self.state.step:,}; "
            f"{saved}."
        )

    def finish(self, interruption: Interruption) -> Result:
        """Writes down the result, once the last step is done and its model written."""
        self.writer.finish()
        self.keep_folder()
        waits_no_more = lambda: interruption.asked  # noqa: E731
        from_main(self.world, lambda: self.model_saver.retry(waits_no_more))
        # All write a sharded checkpoint together, and only the leading one knows.
        if from_main(self.world, lambda: bool(self.model_saver.unsaved)):
            self.writer.save(self.checkpoint_state())
            self.writer.finish()
        summary = self.logger.summary(self.state)
        self.logger.flush()
        from_main(self.world, lambda: self.model_saver.finish(summary, waits_no_more))
        return Result(self.run_folder.path, True, summary)


def run_name(recipe: Recipe) -> str:
    """A folder's name for a recipe."""
    return recipe.name if recipe.seed == 0 else f"{recipe.name}-seed{recipe.seed}"
