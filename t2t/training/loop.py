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

from t2t.data.batches import EvaluationBatches, Feeding
from t2t.data.decoding.damage import Damage, DamagedImage
from t2t.data.order import steps_per_epoch
from t2t.data.sources import Splits
from t2t.errors import LocalError, UserError
from t2t.training.delivery import Delivery
from t2t.training.divergence import after_divergence
from t2t.training.evaluate import Preparation, Score, evaluate
from t2t.training.feeding import open_data, training_batches, validation_batches
from t2t.training.folder import RunFolder
from t2t.training.forecasting.advice import advice
from t2t.training.interruption import Interruption
from t2t.training.machine import Machine, make_exact, plans_of, settle, vars_of
from t2t.training.meeting import is_parting
from t2t.training.optim import all_groups, lr_share, set_lr
from t2t.training.parallel import (
    SPREADS,
    Processes,
    any_over_all,
    batch_statistics,
    check_alike,
    from_leader,
    one_per_machine_first,
    processes,
    rest,
    share_statistics,
    union_over_all,
)
from t2t.training.recipe import Recipe
from t2t.training.resume import (
    CheckpointWriter,
    as_resumed,
    checkpoints,
    find_checkpoint,
    resume,
)
from t2t.training.run import State, new_run
from t2t.training.step import Pending, Stepper
from t2t.training.telling.journal import Journal
from t2t.training.threads import choose_threads, threads_before, use_threads

__all__ = ["Machine", "Result", "Training", "train"]

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
    machine: Machine | None = None,
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
    machine = machine or Machine()
    if data is not None:
        recipe = replace(recipe, data=str(data))
    where = folder or Path("runs") / run_name(recipe)
    place = RunFolder(Path(os.path.expanduser(where)))
    with (
        # All around, since torchrun sends SIGTERM to who is left and has yet to speak.
        Interruption() as interruption,
        processes(machine.device) as team,
        ExitStack() as leaving,
    ):
        settled = settle(machine, team)
        make_exact(settled)
        # Check the mix groups before building anything.
        recipe.augmentation.mix_group_for(recipe.batch_size // team.world_size)

        def claim() -> dict[str, Any] | None:
            leaving.enter_context(place.held())
            place.check(recipe, fresh)
            place.sweep()
            if fresh or not place.has_begun():
                recipe.check_weights()
            done = None if fresh else place.finished()
            if done is not None:
                place.check_model()
            return done

        done = from_leader(team, claim)
        if done is not None:
            return Result(place.path, True, done, was_finished=True)
        if splits is None:
            splits = one_per_machine_first(team, lambda: open_data(recipe))
        check_alike(team, plans_of(recipe, settled, team, splits, fresh))
        journal = leaving.enter_context(Journal(place, recipe, team, quiet=quiet))
        found = None
        if not fresh:
            found = find_checkpoint(place.checkpoints, team, journal.tell)
            if found is None and place.has_begun():
                journal.tell(
                    f"There is no checkpoint in {place.checkpoints}: training starts "
                    "again from step 0."
                )
        about = vars_of(settled)
        if team.device.type == "cpu":
            before = threads_before(place.path) if found else None
            threads = choose_threads(settled.threads, before)
            leaving.enter_context(use_threads(threads))
            about["threads"] = threads.number
            notes = (*notes, str(threads))
        training = Training(recipe, settled, team, place, splits, journal, found)
        training.notes = notes
        # All is built, so nothing that a recipe lacks can stop the run any more.
        from_leader(team, lambda: place.begin(recipe, about, team, fresh))
        if SPREADS[settled.spread]:
            place.check_seen(team)
        with training.writer:
            try:
                result = training.run_to_end(interruption)
                return replace(result, asked_to_stop=interruption.asked)
            except torch.OutOfMemoryError as error:
                share = recipe.batch_size // team.world_size
                held = min(settled.micro_batch or share, share)
                raise LocalError(
                    f"The memory of {team.device} does not suffice for {held} images "
                    f"at once: add --micro-batch {max(1, held // 2)}, which computes "
                    "the step in parts (the same except for dropout, stochastic depth "
                    "and batch norm), or choose smaller images or a smaller model."
                    + (" Its checkpoints are kept." * bool(training.last_checkpoint))
                ) from error
            except Exception as error:
                known = isinstance(error, UserError) or is_parting(error)
                if known or not interruption.asked:
                    raise
                # Ctrl-C also ends compilers that the first step waits for.
                journal.tell(f"Stopped within a step ({type(error).__name__}).")
                return Result(place.path, False, journal.summary(training.run))


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
        checkpoint: Path | None,
    ) -> None:
        self.recipe, self.machine, self.team = recipe, machine, team
        self.place, self.splits, self.journal = place, splits, journal
        self.checkpoint = checkpoint
        self.num_classes = len(splits.train.classes)
        self.per_epoch = steps_per_epoch(len(splits.train), recipe.batch_size)
        self.num_steps = self.per_epoch * recipe.epochs
        self.damage = Damage(machine.damage_limit, journal.tell)
        self.under_way: deque[tuple[Pending, float]] = deque()
        self.notes: Sequence[str] = ()
        if team.device.type == "cpu" and not machine.compile:
            journal.clock.count_all()
        self.writer = CheckpointWriter(place.checkpoints, team, journal.tell)
        self.delivery = Delivery(recipe, team, place, splits, journal.tell)
        begun = recipe if checkpoint is None else as_resumed(recipe, checkpoint)
        names = splits.train.classes
        self.run = new_run(begun, machine, team, self.num_classes, names)
        self.run.data = {
            "classes": list(splits.train.classes),
            "num_images": len(splits.train),
            "fingerprint": splits.train.fingerprint(),
        }
        self.stepper = Stepper(
            recipe, machine, team, self.run, self.num_classes, journal.tell
        )
        augmentation = recipe.augmentation
        self.prepare = Preparation(augmentation.mean, augmentation.std)

    def run_to_end(self, interruption: Interruption) -> Result:
        """Trains until all steps are done, or until told to stop."""
        run, recipe, journal = self.run, self.recipe, self.journal
        if self.checkpoint is not None:
            journal.restore(resume(run, self.checkpoint, self.team, journal.tell))
        journal.resume(run.step, self.num_steps)
        feeding = Feeding(
            num_workers=self.machine.workers, max_pixels=self.machine.max_pixels
        )
        given = (self.team, feeding, self.damage)
        batches = training_batches(recipe, self.splits.train, *given)
        micro_batch = self.machine.micro_batch
        validation = validation_batches(recipe, self.splits.val, *given, micro_batch)
        # Before the clock starts, since it times a step; not if nothing is printed.
        advised = []
        if not journal.console.quiet:
            advised = advice(recipe, self.machine, self.team, self.splits, run.step)
        journal.start(run, self.num_steps, self.per_epoch, batches.description)
        if run.loaded is not None:
            (journal.tell if run.loaded.notes else journal.say)(str(run.loaded))
        for note in self.splits.notes:
            journal.tell(note)
        for note in (*self.notes, *advised):
            journal.say(note)
        interruption.wait_for_steps(journal.tell)
        # Only the result could not be written, or there are fewer images now.
        if run.step >= self.num_steps:
            self.evaluate(validation, recipe.epochs)
        saved_at = time.monotonic()
        for batch in batches.steps(run.step, self.num_steps):
            share = lr_share(recipe.schedule, run.step / self.per_epoch, recipe.epochs)
            set_lr(run.optimizers, share)
            phase = recipe.phase_at(run.step / self.num_steps)
            if phase != self.stepper.phase:
                self.await_steps(0)
                self.stepper.enter(phase)
                journal.clock.cool()
            self.under_way.append((self.stepper.start_step(batch), share))
            epoch, into = divmod(run.step, self.per_epoch)
            last = run.step == self.num_steps
            evaluated = into == 0 and (last or epoch % recipe.evaluate_every == 0)
            waited = time.monotonic() - saved_at > 60 * self.machine.checkpoint_minutes
            asked = interruption.asked or journal.console.is_unheard
            stopping, due = any_over_all((asked, waited), self.team)
            # The device has its next step before we look at what came of this one.
            pauses = evaluated or stopping or due
            self.await_steps(0 if pauses else 1)
            if pauses:
                self.writer.finish()  # a collective, like `from_leader`
                self.keep_folder()
                self.share_statistics()
            if evaluated:
                self.evaluate(validation, epoch)
            if pauses and not last:
                self.writer.save(self.state())
                saved_at = time.monotonic()
            if stopping and not last:
                self.writer.finish()
                journal.interrupted(run, has_checkpoint=not self.writer.failed)
                return Result(self.place.path, False, journal.summary(run))
        return self.finish(interruption)

    def state(self) -> State:
        """The content of a checkpoint."""
        tensors, numbers = self.run.state()
        return State(tensors, {**numbers, "log": self.journal.state()})

    def await_steps(self, num_left: int) -> None:
        """Takes note of steps, in order, until so few are under way."""
        while len(self.under_way) > num_left:
            pending, share = self.under_way.popleft()
            outcome = pending.get()
            peak = max(group["peak"] for group in all_groups(self.run.optimizers))
            self.journal.step(self.run, outcome, peak * share)
            self.stop_if_broken(outcome.step)

    def evaluate(self, validation: EvaluationBatches, epoch: int) -> None:
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
                    self.stepper.precision,
                )
                rest(model)
        self.share_damage()
        self.journal.epoch(run, epoch, scores)
        self.delivery.save_model(run.delivered)
        self.journal.clock.evaluated()

    def share_statistics(self) -> None:
        """Has all judge by, and keep, what the leading process's batch norms counted.

        Each counts its own images, and no step of training looks at what was counted.
        """
        for model in (self.run.plain, self.run.average):
            if model is not None:
                share_statistics(batch_statistics(model), self.team)

    def share_damage(self) -> None:
        """Lets the leading process name what others skipped, and all count it."""
        for name, reason in union_over_all(self.damage.reasons, self.team):
            self.damage.record(DamagedImage(name, reason))

    def stop_if_broken(self, step: int) -> None:
        """Ends a run that has stopped learning, with advice."""
        most = MOST_SKIPPED[self.machine.precision or "fp32"]
        num_skipped = self.run.num_skipped_in_a_row
        if num_skipped < most:
            return
        self.writer.finish()
        raise UserError(
            f"The gradient was not finite {num_skipped} steps in a row "
            f"(step {step}), so training stopped. "
            + after_divergence(
                self.recipe, self.machine, self.place.path, self.last_checkpoint
            )
        )

    @property
    def last_checkpoint(self) -> Path | None:
        """The newest checkpoint, if there is one."""
        return next(iter(checkpoints(self.place.checkpoints)), None)

    def keep_folder(self) -> None:
        """Recreates the run's folder if it was removed or moved while training.

        If that fails, the run ends, and its model is saved elsewhere.
        """

        def look() -> str:
            if not self.place.is_lost():
                restored = self.place.restore_pages() + self.journal.restore_metrics()
                for path in restored:
                    self.journal.tell(
                        f"{path} was removed while training; it was written again."
                    )
                return ""
            try:
                self.place.make_again()
            except UserError as error:
                return str(error)
            self.journal.make_again()
            self.journal.tell(
                f"{self.place.path} or a file in it was removed or moved while "
                "training; it was recreated, and training continues."
            )
            return ""

        trouble = from_leader(self.team, look)
        if not trouble:
            return
        model = self.delivery.gather(self.run.delivered)
        if model is not None:
            self.delivery.save_elsewhere(model)
        where = from_leader(self.team, lambda: self.delivery.elsewhere)
        saved = f"its model was saved to {where}" if where else "nothing could be saved"
        raise UserError(
            f"{self.place.path} was removed or moved while training, and cannot be "
            f"recreated: {trouble} Training stopped after step {self.run.step:,}; "
            f"{saved}."
        )

    def finish(self, interruption: Interruption) -> Result:
        """Writes down the result, once the last step is done and its model written."""
        self.writer.finish()
        self.keep_folder()
        waits_no_more = lambda: interruption.asked  # noqa: E731
        from_leader(self.team, lambda: self.delivery.retry(waits_no_more))
        # All write a sharded checkpoint together, and only the leading one knows.
        if from_leader(self.team, lambda: bool(self.delivery.unsaved)):
            self.writer.save(self.state())
            self.writer.finish()
        summary = self.journal.summary(self.run)
        self.journal.flush()
        from_leader(self.team, lambda: self.delivery.finish(summary, waits_no_more))
        return Result(self.place.path, True, summary)


def run_name(recipe: Recipe) -> str:
    """A folder's name for a recipe."""
    return recipe.name if recipe.seed == 0 else f"{recipe.name}-seed{recipe.seed}"
