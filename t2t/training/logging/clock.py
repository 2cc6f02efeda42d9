"""Measures the time of steps, and estimates the time left."""

import time
from collections import deque
from typing import Any


class Clock:
    """The time of steps; compilation counts separately, evaluations not at all."""

    NUM_RECENT = 100
    SAVED = ("seconds", "compile_seconds", "num_warm", "num_compiled")

    def __init__(self) -> None:
        self.seconds = 0.0
        self.compile_seconds = 0.0
        self.num_warmup = self.num_warmup_left = 3
        self.num_compiled = self.num_warm = 0
        self.recent: deque[float] = deque(maxlen=self.NUM_RECENT)
        self.evaluation_seconds = 0.0
        self.last = self.started = time.monotonic()
        self.first_step_seconds: float | None = None
        """From the command to the end of the first step of this process."""
        self.longest_pause = 0.0
        """The longest time between two steps of this process, without evaluations."""
        self.total_seconds: float | None = None
        """From the command to the last model that this process saved."""

    def skip_warmup(self) -> None:
        """Times the first steps like all others, since nothing is compiled."""
        self.num_warmup = self.num_warmup_left = 0

    def state_dict(self) -> dict[str, float]:
        """Times and numbers of steps, for checkpoints."""
        return {name: getattr(self, name) for name in self.SAVED}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the state of a checkpoint."""
        for name in self.SAVED:
            setattr(self, name, state.get(name, 0))

    def start(self) -> None:
        """Starts to count the time."""
        self.last = time.monotonic()

    def end_evaluation(self) -> None:
        """Measures an evaluation, to estimate the time of those to come."""
        now = time.monotonic()
        self.evaluation_seconds, self.last = now - self.last, now

    def restart_warmup(self) -> None:
        """Counts the next steps as compilation and capture of graphs."""
        self.num_warmup_left = self.num_warmup
        self.recent.clear()

    def step(self) -> None:
        """Counts a finished step."""
        now = time.monotonic()
        took, self.last = now - self.last, now
        if self.first_step_seconds is None:
            self.first_step_seconds = now - self.started
        else:
            self.longest_pause = max(self.longest_pause, took)
        if self.num_warmup_left > 0:
            self.num_warmup_left -= 1
            self.num_compiled += 1
            self.compile_seconds += took
        else:
            self.num_warm += 1
            self.seconds += took
            self.recent.append(took)

    @property
    def is_warm(self) -> bool:
        """Whether a step after the warm-up has been timed."""
        return len(self.recent) > 0

    @property
    def steps_per_second(self) -> float:
        """The mean rate of the run, after the warm-up if it is over."""
        if self.num_warm:
            return self.num_warm / max(self.seconds, 1e-9)
        return self.num_compiled / max(self.compile_seconds, 1e-9)

    @property
    def recent_steps_per_second(self) -> float:
        """The rate of the last steps."""
        return len(self.recent) / max(sum(self.recent), 1e-9)

    def seconds_left(self, num_steps: float, num_evaluations: int) -> float:
        """The time left, estimated from the last steps and the last evaluation."""
        steps = num_steps / self.recent_steps_per_second
        return steps + num_evaluations * self.evaluation_seconds

    def model_saved(self) -> None:
        """Records the time at which the model of an evaluation was saved."""
        self.total_seconds = time.monotonic() - self.started

    def wall_times(self) -> dict[str, float | None]:
        """Times of this process since the command, for result.json."""
        first, total = self.first_step_seconds, self.total_seconds
        if total is None:  # it was saved before, by another process
            total = time.monotonic() - self.started
        return {
            "first_step_seconds": None if first is None else round(first, 2),
            "longest_pause_seconds": round(self.longest_pause, 2),
            "total_seconds": round(total, 2),
        }

    def row(self) -> dict[str, float]:
        """The times, for the metrics."""
        return {
            "train_seconds": round(self.seconds, 3),
            "compile_seconds": round(self.compile_seconds, 3),
        }
