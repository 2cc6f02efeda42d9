"""What a run tells: progress on the screen, numbers in files, curves as a picture."""

import math
import statistics
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

from t2t.errors import UserError, first_line
from t2t.training.distributed import World
from t2t.training.evaluation.evaluate import Score
from t2t.training.logging.clock import Clock, counted, duration, pace
from t2t.training.logging.console import RunConsole
from t2t.training.logging.curves import draw_curves
from t2t.training.logging.failures import Failures
from t2t.training.logging.metrics import MetricsFile, read_rows
from t2t.training.logging.trackers import open_trackers
from t2t.training.recipe import Recipe
from t2t.training.run_folder import CURVES, METRICS, RunFolder, command_line
from t2t.training.state import TrainState
from t2t.training.step import StepResult

LOG_EVERY_SECONDS = 10.0
DRAW_EVERY_SECONDS = 10.0
SHOW_EVERY_SECONDS = 0.2
"""How often the progress bar is updated."""
NUM_ROWS = 100
"""Rows of numbers that a run leaves, or one a step, even if it is soon over."""
WINDOW = 100
"""Steps over which the logged loss is averaged, and the most between two rows."""

LOG_FAILED = "The log could not be written"
METRICS_FAILED = f"{METRICS} could not be written"
CURVES_FAILED = f"{CURVES} could not be drawn"
STEPS_SKIPPED = "A step was left out, its gradient not being finite,"


class RunLogger:
    """Tells a person on the screen and writes numbers down, in the leading process."""

    def __init__(
        self,
        run_folder: RunFolder,
        recipe: Recipe,
        world: World,
        *,
        quiet: bool = False,
    ) -> None:
        self.run_folder, self.recipe, self.world = run_folder, recipe, world
        self.console = RunConsole(
            stderr=False, quiet=quiet or not world.is_main, highlight=False
        )
        self.metrics: MetricsFile | None = None
        self.failures = Failures(self.warn)
        # If the log cannot be written, show it on screen.
        self.log_failures = Failures(lambda words: self.show(words, style="yellow"))
        self.trackers: list[Any] = []
        self.clock = Clock()
        self.losses: deque[float] = deque(maxlen=WINDOW)
        self.scores: dict[str, Any] = {}
        self.progress: Progress | None = None
        self.num_steps = self.per_epoch = 0
        self.spoke_at = self.drawn_at = self.shown_at = -math.inf

    def __enter__(self) -> "RunLogger":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.progress is not None:
            self.progress.stop()
        self.failures.close()
        self.log_failures.close()
        if self.metrics is not None:
            self.metrics.close()
            if isinstance(error, UserError):  # which the command line tells
                self.note(str(error))
        for tracker in self.trackers:
            with suppress(Exception):
                tracker.close()

    def warn(self, sentence: str) -> None:
        """Says a sentence that should not be missed."""
        self.show(sentence, style="yellow")
        self.note(sentence)

    def show(self, sentence: str, style: str) -> None:
        """Prints a sentence without logging it."""
        self.console.show(Text(sentence, style=style))

    def info(self, *words: str | tuple[str, str]) -> None:
        """Says what everybody expects to hear, some of it in a style."""
        text = Text.assemble(*words)
        self.console.show(text)
        self.note(text.plain)

    def note(self, words: str) -> None:
        """Adds to the log, as plain text; a disk that is full does not stop a run."""
        if (
            not self.world.is_main
            or not self.run_folder.path.is_dir()
            or self.run_folder.is_lost()
        ):
            return
        try:
            with self.run_folder.log.open("ab") as file:
                file.write(f"{words}\n".encode(errors="backslashreplace"))
            self.log_failures.over(LOG_FAILED)
        except OSError as error:
            self.log_failures.report(LOG_FAILED, self.trouble(LOG_FAILED, error))

    def resume(self, step: int, num_steps: int) -> None:
        """Forgets the numbers of what will be done again, and opens the file."""
        if not self.world.is_main:
            return
        self.metrics = MetricsFile(self.run_folder.metrics)
        try:
            self.metrics.open_until(step, num_steps)
        except OSError as error:
            raise self.run_folder.unwritable(error) from error
        self.trackers = open_trackers(self.run_folder, step, self.warn)

    def restore_metrics(self) -> list[Path]:
        """Rewrites the metrics if their file was removed; returns it if it was."""
        if self.metrics is None or not self.metrics.is_lost():
            return []
        self.make_again()
        return [] if self.metrics.is_lost() else [self.run_folder.metrics]

    def make_again(self) -> None:
        """Rewrites the metrics after the run's folder was removed."""
        if self.metrics is not None:
            try:
                self.metrics.make_again()
            except OSError as error:
                said = self.trouble(METRICS_FAILED, error)
                self.failures.report(METRICS_FAILED, said)

    def flush(self) -> None:
        """Writes metrics that could not be written before."""
        if self.metrics is not None:
            with suppress(OSError):
                self.metrics.flush()

    def state(self) -> dict[str, Any]:
        """The state of the log, for checkpoints."""
        return {
            "losses": [*self.losses],
            "scores": self.scores,
            "clock": self.clock.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Restores the state of a checkpoint, so that the log continues unchanged."""
        self.losses.extend(state.get("losses", ()))
        self.scores = state.get("scores", {})
        self.clock.restore(state.get("clock", {}))

    def start(
        self, run: TrainState, num_steps: int, per_epoch: int, description: str
    ) -> None:
        """Says what begins."""
        self.num_steps, self.per_epoch = num_steps, per_epoch
        recipe, info = self.recipe, self.info
        steps = counted(per_epoch, "step")
        size = sum(p.numel() for p in run.plain.parameters() if p.requires_grad)
        model = f"{recipe.model}, {size / 1e6:.2f} M parameters"
        info((recipe.name, "bold"), f": {model}")
        info(f"{description}; {counted(recipe.epochs, 'epoch')} of {steps}")
        info(f"Folder: {self.run_folder.path}")
        if run.step:
            done = run.step / per_epoch
            info(f"Resuming after step {run.step:,} (epoch {done:.1f}).")
        self.clock.start()
        self.drawn_at = time.monotonic()
        if self.console.is_terminal and not self.console.quiet:
            self.progress = Progress(
                SpinnerColumn(),
                TextColumn("{task.description}"),
                BarColumn(bar_width=None),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                console=self.console,
                transient=True,
            )
            self.task = self.progress.add_task("", total=num_steps, completed=run.step)
            self.progress.start()

    def step(self, run: TrainState, outcome: StepResult, lr: float) -> None:
        """Takes note of a step, and speaks every few seconds."""
        self.clock.step()
        step, loss, norm, stepped = outcome
        if stepped:
            self.losses.append(loss)
        else:
            self.failures.report(
                STEPS_SKIPPED, f"Step {step} was left out: its gradient is not finite."
            )
        last = step == self.num_steps
        # Depends on the step only, so that a resumed run writes the same rows.
        if step == 1 or last or step % self.row_every == 0:
            rate = self.clock.steps_per_second * self.recipe.batch_size
            self.write(
                step,
                {
                    "loss": rounded(self.loss, 5),
                    "gradient_norm": rounded(norm, 4),
                    "lr": lr,
                    "images_per_second": round(rate, 1),
                },
            )
        now = time.monotonic()
        if last or now - self.shown_at >= SHOW_EVERY_SECONDS:
            self.show_progress(step)
        if last or now - self.spoke_at >= LOG_EVERY_SECONDS:
            self.spoke_at = now
            if self.progress is not None:
                self.note(self.progress_line(step))
            elif not last:
                self.info(self.progress_line(step))

    @property
    def row_every(self) -> int:
        """Steps between two rows of a run."""
        return min(max(1, self.num_steps // NUM_ROWS), WINDOW)

    @property
    def loss(self) -> float:
        """The mean loss of the last steps."""
        return statistics.fmean(self.losses) if self.losses else math.nan

    def progress_line(self, step: int) -> str:
        """Epoch, loss, accuracy, speed and time left."""
        return (
            f"epoch {step / self.per_epoch:.1f}/{self.recipe.epochs}  loss "
            f"{self.loss:.3f}  {self.accuracy()}{self.pace(step)}"
        )

    def show_progress(self, step: int) -> None:
        """Updates the progress bar, if there is one."""
        self.shown_at = time.monotonic()
        if self.progress is not None:
            words = self.progress_line(step)
            self.progress.update(self.task, completed=step, description=words)

    def epoch(self, run: TrainState, epoch: int, scores: dict[str, Score]) -> None:
        """Takes note of an evaluation."""
        best = scores.get("averaged", scores["raw"])
        row = {
            "epoch": epoch,
            "top1": round(best.top1, 3),
            "top5": round(best.top5, 3),
            "val_loss": rounded(best.loss, 5),
            "top1_raw": round(scores["raw"].top1, 3),
            "val_loss_raw": rounded(scores["raw"].loss, 5),
            "num_images": best.num_images,
        }
        self.scores = row
        self.write(run.step, row)
        # The bar must not lag behind the line above it.
        self.show_progress(min(run.step, self.num_steps))
        epochs = self.recipe.epochs
        self.info(
            f"epoch {epoch:>{len(str(epochs))}}/{epochs}  top-1 ",
            (f"{best.top1:.2f} %", "bold"),
            f"  raw {scores['raw'].top1:.2f} %  validation loss {best.loss:.3f}"
            f"  {duration(self.clock.seconds)}",
        )
        # Drawing takes longer than a short epoch.
        due = time.monotonic() - self.drawn_at > DRAW_EVERY_SECONDS
        if self.world.is_main and (due or run.step >= self.num_steps):
            self.draw()

    def interrupted(self, run: TrainState, has_checkpoint: bool) -> None:
        """Says how to go on."""
        where = f"Stopped at step {run.step:,} of {self.num_steps:,}"
        if has_checkpoint:
            self.info(f"{where} with a checkpoint; the same command goes on from here.")
        else:
            self.warn(f"{where} without a checkpoint of it.")

    def pace(self, step: int) -> str:
        """The rate and the time left, once the first steps have shown them."""
        if not self.clock.is_warm:
            return "warming up"
        left = self.clock.seconds_left(
            self.num_steps_left(step), self.num_evaluations_left(step)
        )
        rate = self.clock.recent_steps_per_second * self.recipe.batch_size
        return f"{pace(rate)}  {duration(left)} left"

    def num_steps_left(self, step: int) -> float:
        """How many are to come, counted in steps like the last one."""
        last = self.recipe.phase_at((step - 1) / self.num_steps)
        shares = self.recipe.phases(step / self.num_steps)
        work = sum(share * phase.cost for phase, share in shares.items())
        return self.num_steps * work / last.cost

    def num_evaluations_left(self, step: int) -> int:
        """How many are to come, with the one that this step may be the last before."""
        every = self.recipe.evaluate_every
        num_epochs_done = (step - 1) // self.per_epoch
        return -(-self.recipe.epochs // every) - num_epochs_done // every

    def accuracy(self) -> str:
        """The last evaluation, for the line of progress."""
        return f"top-1 {self.scores['top1']:.2f} %  " if self.scores else ""

    def write(self, step: int, row: dict[str, Any]) -> None:
        """Adds a line to the metrics, and tells the trackers."""
        row = {"step": step, **row, **self.clock.row()}
        if self.metrics is not None:
            try:
                self.metrics.add(row)
                self.failures.over(METRICS_FAILED)
            except OSError as error:
                said = self.trouble(METRICS_FAILED, error)
                self.failures.report(METRICS_FAILED, said)
        for tracker in [*self.trackers]:
            try:
                tracker.log(step, row)
            except Exception as error:  # of their own kinds: a network, a disk
                self.trackers.remove(tracker)
                name = type(tracker).__name__
                told = getattr(error, "strerror", None) or first_line(error)
                self.warn(f"{name} is left out ({told}); training goes on.")

    def draw(self) -> None:
        """Draws the curves; a disk that is full does not stop a run."""
        self.drawn_at = time.monotonic()
        try:
            draw_curves(
                read_rows(self.run_folder.metrics),
                self.recipe.name,
                self.run_folder.curves,
            )
            self.failures.over(CURVES_FAILED)
        except OSError as error:
            self.failures.report(CURVES_FAILED, self.trouble(CURVES_FAILED, error))

    def trouble(self, failed: str, error: OSError) -> str:
        """The message for a file that cannot be written."""
        return (
            f"{failed} ({error.strerror}); training continues. Check the disk of "
            f"{self.run_folder.path}."
        )

    def summary(self, run: TrainState) -> dict[str, Any]:
        """The run in a few numbers."""
        recipe = self.recipe
        return {
            "recipe": recipe.name,
            "data": recipe.data,
            "model": recipe.model,
            "parameters": sum(
                p.numel() for p in run.plain.parameters() if p.requires_grad
            ),
            "epochs": recipe.epochs,
            "seed": recipe.seed,
            "steps": run.step,
            "skipped_steps": run.num_skipped,
            **{key: self.scores.get(key) for key in ("top1", "top5", "top1_raw")},
            "val_loss": self.scores.get("val_loss"),
            "train_minutes": round(self.clock.seconds / 60, 3),
            "compile_minutes": round(self.clock.compile_seconds / 60, 3),
            "images_per_second": round(
                self.clock.steps_per_second * recipe.batch_size, 1
            ),
            "device": str(self.world.device),
            "command": command_line(),
        }


def rounded(number: float, num_digits: int) -> float | None:
    """A number for JSON, which has no word for one that is not finite."""
    return round(number, num_digits) if math.isfinite(number) else None
