"""The progress bar, and the time left."""

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from t2t.formatting import duration, pace
from t2t.training.logging.clock import Clock
from t2t.training.recipe import Recipe


class ProgressBar:
    """A bar over the steps of a run, on a terminal."""

    def __init__(self, console: Console, num_steps: int, step: int) -> None:
        self.progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        )
        self.bar = self.progress.add_task("", total=num_steps, completed=step)
        self.progress.start()

    def update(self, step: int, text: str) -> None:
        """Moves the bar to a step."""
        self.progress.update(self.bar, completed=step, description=text)

    def stop(self) -> None:
        """Removes the bar."""
        self.progress.stop()


class RemainingTime:
    """How much of a run is left, in steps and evaluations."""

    def __init__(self, recipe: Recipe, num_steps: int, per_epoch: int) -> None:
        self.recipe, self.num_steps, self.per_epoch = recipe, num_steps, per_epoch

    def speed_and_time_left(self, clock: Clock, step: int) -> str:
        """The rate and the time left, once the warm-up is over."""
        if not clock.is_warm:
            return "warming up"
        left = clock.seconds_left(
            self.num_steps_left(step), self.num_evaluations_left(step)
        )
        rate = clock.recent_steps_per_second * self.recipe.batch_size
        return f"{pace(rate)}  {duration(left)} left"

    def num_steps_left(self, step: int) -> float:
        """The number of steps left, in units of the last step's cost."""
        last = self.recipe.phase_at((step - 1) / self.num_steps)
        return self.num_steps * self.recipe.cost(step / self.num_steps) / last.cost

    def num_evaluations_left(self, step: int) -> int:
        """The number of evaluations left, including one right after this step."""
        num_epochs_done = (step - 1) // self.per_epoch
        num_done = num_epochs_done // self.recipe.evaluate_every
        return self.recipe.num_evaluations - num_done
