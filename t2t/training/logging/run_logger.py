"""The log of a run: messages, metrics and curves."""

import math
import time
from types import TracebackType
from typing import Any

from t2t.errors import UserError
from t2t.formatting import counted, duration
from t2t.tasks import Metric, task_class
from t2t.tasks.checks import checked_warning
from t2t.training.distributed import World
from t2t.training.environment import command_line
from t2t.training.logging.clock import Clock
from t2t.training.logging.failure_counter import FailureCounter
from t2t.training.logging.messages import Messages
from t2t.training.logging.metrics_log import MetricsLog
from t2t.training.logging.progress import ProgressBar, RemainingTime
from t2t.training.logging.recent_numbers import WINDOW, RecentNumbers
from t2t.training.recipe import Recipe
from t2t.training.run_folder import RunFolder
from t2t.training.state import TrainState
from t2t.training.step_result import StepResult

LOG_EVERY_SECONDS = 10.0
DRAW_EVERY_SECONDS = 10.0
SHOW_EVERY_SECONDS = 0.2
"""How often the progress bar is updated."""
NUM_ROWS = 100
"""Rows of metrics that a run writes, or one per step if it has fewer steps."""

STEPS_SKIPPED = "A step was skipped because its gradient was not finite,"


class RunLogger:
    """Logs a run to the console and to its folder, in the main process."""

    def __init__(
        self,
        run_folder: RunFolder,
        recipe: Recipe,
        world: World,
        *,
        quiet: bool = False,
        has_labels: bool = True,
        has_uneven_classes: bool = False,
    ) -> None:
        self.run_folder, self.recipe, self.world = run_folder, recipe, world
        self.task = task_class(recipe.task)
        self.metrics: tuple[Metric, ...] = self.task.metrics_for(has_labels)
        self.shown = self.shown_metrics(has_uneven_classes)
        self.messages = Messages(run_folder, world, quiet)
        self.console = self.messages.console
        self.warn, self.info = self.messages.warn, self.messages.info
        self.failures = FailureCounter(self.warn)
        self.metrics_log = MetricsLog(run_folder, self.messages)
        self.clock = Clock()
        self.recent = RecentNumbers()
        self.scores: dict[str, Any] = {}
        """The last evaluation."""
        self.bar: ProgressBar | None = None
        self.num_steps = self.per_epoch = 0
        self.logged_at = self.drawn_at = self.shown_at = -math.inf
        self.has_warned = False
        """Whether the task's warning was logged."""

    def __enter__(self) -> "RunLogger":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.bar is not None:
            self.bar.stop()
        self.failures.close()
        self.metrics_log.close()
        self.messages.failures.close()
        if self.metrics_log.file is not None and isinstance(error, UserError):
            self.messages.note(str(error))  # the command line prints it

    def resume(self, step: int, num_steps: int) -> None:
        """Opens the metrics, without rows of steps that will be repeated."""
        if self.world.is_main:
            self.metrics_log.open(step, num_steps)

    def state_dict(self) -> dict[str, Any]:
        """The state of the log, for checkpoints."""
        return {
            "numbers": self.recent.state_dict(),
            "scores": self.scores,
            "clock": self.clock.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the state of a checkpoint."""
        self.recent.load_state_dict(state.get("numbers", {}))
        self.scores = state.get("scores", {})
        self.clock.load_state_dict(state.get("clock", {}))

    def start(
        self, state: TrainState, num_steps: int, per_epoch: int, description: str
    ) -> None:
        """Logs what is trained, and starts the clock."""
        self.num_steps, self.per_epoch = num_steps, per_epoch
        recipe, info = self.recipe, self.info
        self.remaining = RemainingTime(recipe, num_steps, per_epoch)
        steps = counted(per_epoch, "step")
        model = f"{recipe.model}, {state.num_parameters / 1e6:.2f} M parameters"
        if state.num_frozen:
            model += f"; only the head's {state.num_trained:,} are trained"
        info((recipe.name, "bold"), f": {model}")
        info(f"{description}; {counted(recipe.epochs, 'epoch')} of {steps}")
        info(f"Folder: {self.run_folder.path}")
        if state.step:
            done = state.step / per_epoch
            info(f"Resuming after step {state.step:,} (epoch {done:.1f}).")
        self.clock.start()
        self.drawn_at = time.monotonic()
        if self.console.is_terminal and not self.console.quiet:
            self.bar = ProgressBar(self.console, num_steps, state.step)

    def log_step(self, result: StepResult) -> None:
        """Logs a step; prints a line every few seconds."""
        self.clock.step()
        step = result.step
        if result.applied:
            self.recent.add(result.numbers)
        else:
            self.failures.failed(
                STEPS_SKIPPED, f"Step {step} was skipped: its gradient is not finite."
            )
        last = step == self.num_steps
        # Depends on the step only: a resumed run writes the same rows.
        if step == 1 or last or step % self.row_every == 0:
            rate = self.clock.steps_per_second * self.recipe.batch_size
            means = self.recent.means()
            sentence = self.task.warning(means, step / self.num_steps)
            self.warn_once(checked_warning(self.task, sentence))
            self.write(
                step,
                {
                    **{name: rounded(value, 5) for name, value in means.items()},
                    "gradient_norm": rounded(result.gradient_norm, 4),
                    "lr": result.lr,
                    "images_per_second": round(rate, 1),
                },
            )
        now = time.monotonic()
        if last or now - self.shown_at >= SHOW_EVERY_SECONDS:
            self.show_progress(step)
        if last or now - self.logged_at >= LOG_EVERY_SECONDS:
            self.logged_at = now
            if self.bar is not None:
                self.messages.note(self.progress_line(step))
            elif not last:
                self.info(self.progress_line(step))

    def warn_once(self, sentence: str) -> None:
        """Logs the first warning of the task."""
        if sentence and not self.has_warned:
            self.has_warned = True
            self.warn(sentence)

    @property
    def row_every(self) -> int:
        """Steps between two rows of metrics: no step may be left out of the means."""
        return min(max(1, self.num_steps // NUM_ROWS), WINDOW)

    def progress_line(self, step: int) -> str:
        """Epoch, loss, primary metric, speed and time left."""
        metric = self.metrics[0]
        value = self.scores.get(metric.name)
        shown = "" if value is None else f"{metric.label} {metric.show(value)}  "
        return (
            f"epoch {step / self.per_epoch:.1f}/{self.recipe.epochs}  loss "
            f"{self.recent.mean('loss'):.3f}  {shown}"
            f"{self.remaining.speed_and_time_left(self.clock, step)}"
        )

    def seconds_left(self, step: int) -> float:
        """The estimated time of the steps left."""
        return self.clock.seconds_left(self.remaining.num_steps_left(step), 0)

    def show_progress(self, step: int) -> None:
        """Updates the progress bar, if there is one."""
        self.shown_at = time.monotonic()
        if self.bar is not None:
            self.bar.update(step, self.progress_line(step))

    def log_evaluation(
        self,
        step: int,
        epoch: int,
        scores: dict[str, dict[str, float]],
        num_images: int,
    ) -> dict[str, Any]:
        """Logs the metrics of the raw model and of the EMA, if there is one."""
        raw, best = scores["raw"], scores.get("ema", scores["raw"])
        digits = {each.name: each.digits + 2 for each in self.metrics}
        row: dict[str, Any] = {"epoch": epoch}
        for name, value in best.items():
            row[name] = rounded(value, digits.get(name, 5))
        for name, value in raw.items():
            row[f"{name}_raw"] = rounded(value, digits.get(name, 5))
        self.scores = row = {**row, "num_images": num_images}
        self.write(step, row)
        # The bar must not lag behind the line above it.
        self.show_progress(min(step, self.num_steps))
        self.info(*self.evaluation_line(epoch, raw, best))
        return row

    def draw_if_due(self, step: int) -> None:
        """Draws the curves at the last step, and before it now and then.

        Drawing takes longer than a short epoch.
        """
        due = time.monotonic() - self.drawn_at > DRAW_EVERY_SECONDS
        if self.world.is_main and (due or step >= self.num_steps):
            self.draw()

    def shown_metrics(self, has_uneven_classes: bool) -> list[Metric]:
        """The metrics in the line of an evaluation beside the primary one.

        With even classes, macro accuracy is the same as top-1.
        """
        shown = {"val_loss"} | ({"macro_accuracy"} if has_uneven_classes else set())
        return [each for each in self.metrics[1:] if each.name in shown]

    def evaluation_line(
        self, epoch: int, raw: dict[str, float], best: dict[str, float]
    ) -> list[str | tuple[str, str]]:
        """The epoch, the primary metric, a few others and the time."""
        first, epochs = self.metrics[0], self.recipe.epochs
        line: list[str | tuple[str, str]] = [
            f"epoch {epoch:>{len(str(epochs))}}/{epochs}  {first.label} ",
            (first.show(best[first.name]), "bold"),
            f"  raw {first.show(raw[first.name])}",
        ]
        for metric in self.shown:
            line.append(f"  {metric.label} {metric.show(best[metric.name])}")
        return [*line, f"  {duration(self.clock.seconds)}"]

    def log_early_stop(self, state: TrainState) -> None:
        """Logs that a run stops before its last epoch, and draws its curves."""
        self.info(self.stopped_early(state) or "")
        if self.world.is_main:
            self.draw()

    def interrupted(self, step: int, has_checkpoint: bool) -> None:
        """Logs where the run stopped, and how to resume it."""
        where = f"Stopped at step {step:,} of {self.num_steps:,}"
        if has_checkpoint:
            self.info(f"{where} with a checkpoint; run the same command to resume.")
        else:
            self.warn(f"{where}; the last checkpoint could not be written.")

    def write(self, step: int, row: dict[str, Any]) -> None:
        """Adds a row to the metrics, and to the trackers."""
        self.metrics_log.add({"step": step, **row, **self.clock.row()})

    def draw(self) -> None:
        """Draws the curves."""
        self.drawn_at = time.monotonic()
        self.metrics_log.draw(self.recipe.name, self.metrics[0])

    def stopped_early(self, state: TrainState) -> str | None:
        """Why a run stopped before its last epoch; None if it did not."""
        recipe, best, first = self.recipe, state.best, self.metrics[0]
        patience = recipe.patience
        if patience is None or best.num_since < patience:
            return None
        if state.step >= self.num_steps:
            return None
        return (
            f"Stopped early after epoch {self.scores['epoch']} of {recipe.epochs}: "
            f"{first.label} has not improved since epoch {best.improved_epoch} "
            f"({first.show(best.row[first.name])}; patience={patience})."
        )

    def summary(self, state: TrainState) -> dict[str, Any]:
        """The content of result.json."""
        recipe = self.recipe
        names = [each.name for each in self.metrics]
        best, last = state.best.row, self.scores
        kept = best if recipe.keep == "best" else last
        scores = {key: kept.get(key) for key in (*names, f"{names[0]}_raw")}
        rate = self.clock.steps_per_second * recipe.batch_size
        return {
            "recipe": recipe.name,
            "task": recipe.task,
            "data": recipe.data,
            "model": recipe.model,
            "parameters": state.num_parameters,
            "epochs": recipe.epochs,
            "seed": recipe.seed,
            "steps": state.step,
            "skipped_steps": state.num_skipped,
            "metric": names[0],
            **scores,
            "keep": recipe.keep,
            "best_epoch": best.get("epoch"),
            "best_score": best.get(names[0]),
            "last_epoch": last.get("epoch"),
            "last_score": last.get(names[0]),
            "stopped_early": self.stopped_early(state),
            "train_minutes": round(self.clock.seconds / 60, 3),
            "compile_minutes": round(self.clock.compile_seconds / 60, 3),
            **self.clock.wall_times(),
            "images_per_second": round(rate, 1),
            "device": str(self.world.device),
            "command": command_line(),
        }


def rounded(number: float, num_digits: int) -> float | None:
    """A number for JSON; None if it is not finite."""
    return round(number, num_digits) if math.isfinite(number) else None
