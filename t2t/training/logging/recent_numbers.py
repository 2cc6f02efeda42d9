"""Means of a task's numbers over the last steps."""

import math
import statistics
from collections import deque
from collections.abc import Mapping, Sequence

WINDOW = 100
"""Steps over which numbers are averaged."""


class RecentNumbers:
    """The task's numbers of the last steps, by name."""

    def __init__(self) -> None:
        self.values: dict[str, deque[float]] = {}

    def add(self, numbers: Mapping[str, float]) -> None:
        """Adds the numbers of a step."""
        for name, value in numbers.items():
            self.values.setdefault(name, deque(maxlen=WINDOW)).append(value)

    def mean(self, name: str) -> float:
        """The mean of the finite values of a number; NaN if there are none."""
        values = [each for each in self.values.get(name, ()) if math.isfinite(each)]
        return statistics.fmean(values) if values else math.nan

    def means(self) -> dict[str, float]:
        """The mean of every number, the loss first."""
        return {name: self.mean(name) for name in dict.fromkeys(["loss", *self.values])}

    def state_dict(self) -> dict[str, list[float]]:
        """The values, for checkpoints."""
        return {name: [*values] for name, values in self.values.items()}

    def load_state_dict(self, state: Mapping[str, Sequence[float]]) -> None:
        """Restores the values of a checkpoint."""
        self.values = {
            name: deque(values, maxlen=WINDOW) for name, values in state.items()
        }
