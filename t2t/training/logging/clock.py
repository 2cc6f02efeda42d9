"""Time: what a run has taken, and what it still will; and numbers in words."""

import math
import time
from collections import deque
from typing import Any


class Clock:
    """Time spent in steps: without evaluations, and with compiling counted apart."""

    NUM_RECENT = 100
    KEPT = ("seconds", "compile_seconds", "num_warm", "num_compiled")

    def __init__(self) -> None:
        self.seconds = 0.0
        self.compile_seconds = 0.0
        self.num_first = self.num_cold = 3
        self.num_compiled = self.num_warm = 0
        self.recent: deque[float] = deque(maxlen=self.NUM_RECENT)
        self.evaluation_seconds = 0.0
        self.last = time.monotonic()

    def count_all(self) -> None:
        """Nothing is compiled: the first steps are as good as any."""
        self.num_first = self.num_cold = 0

    def state(self) -> dict[str, float]:
        """The times so far and their numbers of steps, for checkpoints."""
        return {name: getattr(self, name) for name in self.KEPT}

    def restore(self, state: dict[str, Any]) -> None:
        """Restores the state of a checkpoint."""
        for name in self.KEPT:
            setattr(self, name, state.get(name, 0))

    def start(self) -> None:
        """Time counts from here."""
        self.last = time.monotonic()

    def evaluated(self) -> None:
        """An evaluation is done: no time of steps, but the next one takes as long."""
        now = time.monotonic()
        self.evaluation_seconds, self.last = now - self.last, now

    def cool(self) -> None:
        """Another program begins: its first steps compile it, and capture graphs."""
        self.num_cold = self.num_first
        self.recent.clear()

    def step(self) -> None:
        """A step is done."""
        now = time.monotonic()
        took, self.last = now - self.last, now
        if self.num_cold > 0:
            self.num_cold -= 1
            self.num_compiled += 1
            self.compile_seconds += took
        else:
            self.num_warm += 1
            self.seconds += took
            self.recent.append(took)

    @property
    def is_warm(self) -> bool:
        """Whether a step of the present program was timed that did not compile."""
        return len(self.recent) > 0

    @property
    def steps_per_second(self) -> float:
        """The mean rate of the run, of steps that compiled where all did."""
        if self.num_warm:
            return self.num_warm / max(self.seconds, 1e-9)
        return self.num_compiled / max(self.compile_seconds, 1e-9)

    @property
    def recent_steps_per_second(self) -> float:
        """The rate of the last steps."""
        return len(self.recent) / max(sum(self.recent), 1e-9)

    def seconds_left(self, num_steps: float, num_evaluations: int) -> float:
        """What is still to come, judged by the last steps and the last evaluation."""
        steps = num_steps / self.recent_steps_per_second
        return steps + num_evaluations * self.evaluation_seconds

    def row(self) -> dict[str, float]:
        """The times, for the metrics."""
        return {
            "train_seconds": round(self.seconds, 3),
            "compile_seconds": round(self.compile_seconds, 3),
        }


def duration(seconds: float) -> str:
    """A time as people say it."""
    if not math.isfinite(seconds):
        return "?"
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    if whole < 7200:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def pace(rate: float) -> str:
    """Images a second, also where that is less than one."""
    return f"{rate:,.0f} images/s" if rate >= 1 else f"{rate:.2g} images/s"


def counted(number: int, noun: str) -> str:
    """So many of something, one or several."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
