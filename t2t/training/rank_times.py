"""The time that each process takes by itself, to name one that slows down all."""

import platform
import statistics
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from typing import NamedTuple

import torch
import torch.distributed as dist

from t2t.data.sampler import Batch
from t2t.training.distributed import World

SLOWER = 0.2
"""Warns of processes slower than the median by more than this share."""
MIN_SECONDS = 1.0
"""Shorter times are noise."""


class OwnTimes(NamedTuple):
    """The times of one process since the last evaluation."""

    host: str
    num_steps: int
    seconds: float
    """Time of the steps, which all processes take together."""
    waited: float
    """Time of waiting for images."""
    evaluating: float
    """Its share of the validation images."""


class RankTimes:
    """Times what a process does without the others; compares after an evaluation.

    Steps take all processes as long as the slowest one.
    """

    def __init__(self, world: World, warn: Callable[[str], None]) -> None:
        self.world, self.warn = world, warn
        self.reported: set[tuple[int, str]] = set()
        self.evaluation = Stopwatch(world.device)
        self.restart()

    def restart(self) -> None:
        """Starts the times of steps anew."""
        self.num_steps, self.waited = 0, 0.0
        self.started = time.perf_counter()

    def timed(self, batches: Generator[Batch]) -> Generator[Batch]:
        """The batches; adds up the time that they are waited for."""
        with closing(batches):
            while True:
                started = time.perf_counter()
                batch = next(batches, None)
                self.waited += time.perf_counter() - started
                if batch is None:
                    return
                self.num_steps += 1
                yield batch

    def start_evaluation(self) -> None:
        """Records the time of the steps, and starts that of an evaluation."""
        self.seconds = time.perf_counter() - self.started
        self.evaluation.start()

    def compare(self) -> None:
        """Warns of processes that are slower than the others, each once."""
        if self.world.is_distributed:
            evaluating = self.evaluation.seconds()
            own = OwnTimes(
                platform.node(), self.num_steps, self.seconds, self.waited, evaluating
            )
            found: list[OwnTimes] = [own] * self.world.size
            dist.all_gather_object(found, own, group=self.world.control)
            for rank, kind, words in slow_processes(found):
                if (rank, kind) not in self.reported:
                    self.reported.add((rank, kind))
                    self.warn(words)
        self.restart()


class Stopwatch:
    """Times the work of a device, without waiting for it."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.first = self.last = self.now()

    def now(self) -> "torch.cuda.Event | float":
        """The time at which the device has done all work so far."""
        if self.device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def start(self) -> None:
        """Starts at zero."""
        self.first = self.last = self.now()

    def lap(self, _: int = 0) -> None:
        """Records the time."""
        self.last = self.now()

    def seconds(self) -> float:
        """The seconds from the start to the last lap."""
        first, last = self.first, self.last
        if isinstance(first, float) or isinstance(last, float):
            return float(last) - float(first)  # type: ignore[arg-type]
        last.synchronize()
        return first.elapsed_time(last) / 1e3


def slow_processes(times: Sequence[OwnTimes]) -> list[tuple[int, str, str]]:
    """Rank, kind and sentence for the slowest process, if it is much slower."""
    found = []
    evaluating = [each.evaluating for each in times]
    slowest, usual = max(evaluating), statistics.median_low(evaluating)
    if usual > MIN_SECONDS and slowest > (1 + SLOWER) * usual:
        rank = evaluating.index(slowest)
        words = (
            f"Process {rank} on {times[rank].host} is slow: it took {slowest:,.1f} s "
            f"to evaluate its share of the images, the median process {usual:,.1f} s. "
            "All others wait for it in every step; check its GPU's clock and "
            "temperature, and what else runs on its node."
        )
        found.append((rank, "evaluation", words))
    waited = [each.waited / max(each.num_steps, 1) for each in times]
    slowest, usual = max(waited), statistics.median_low(waited)
    rank = waited.index(slowest)
    step = times[rank].seconds / max(times[rank].num_steps, 1)
    is_long = times[rank].waited > MIN_SECONDS
    if is_long and slowest - usual > SLOWER * step:
        words = (
            f"Process {rank} on {times[rank].host} is slow to read: it waits "
            f"{slowest * 1e3:,.0f} ms for the images of a step, the median process "
            f"{usual * 1e3:,.0f} ms, of {step * 1e3:,.0f} ms that a step takes. All "
            "others wait for it; check its disk, network and free cores."
        )
        found.append((rank, "data", words))
    return found
