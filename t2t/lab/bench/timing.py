"""Measures step time, peak memory and the hardware's matrix rate."""

import ctypes
import functools
import math
import os
import platform
import statistics
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from t2t.formatting import counted
from t2t.training.runtime import PRECISIONS

Step = Callable[[], Any]

NUM_ROUNDS = 5


@dataclass(frozen=True)
class Timing:
    """Mean seconds per step of several rounds."""

    rounds: tuple[float, ...]

    @property
    def seconds(self) -> float:
        """The median round."""
        return statistics.median(self.rounds)

    @property
    def spread(self) -> float:
        """Half the range of the rounds, relative to the median."""
        return (max(self.rounds) - min(self.rounds)) / 2 / self.seconds


def time_steps(step: Step, device: torch.device, seconds: float) -> Timing:
    """Times rounds of steps for `seconds` in all, at least a step per round."""
    started = time.perf_counter()
    step()
    synchronise(device)
    once = time.perf_counter() - started
    repeats = max(1, math.ceil(seconds / NUM_ROUNDS / once))
    rounds = []
    for _ in range(NUM_ROUNDS):
        synchronise(device)
        started = time.perf_counter()
        for _ in range(repeats):
            step()
        synchronise(device)
        rounds.append((time.perf_counter() - started) / repeats)
    return Timing(tuple(rounds))


def synchronise(device: torch.device) -> None:
    """Waits for all work on the device."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


@functools.cache
def matrix_rate(device: torch.device, precision: str) -> float:
    """Measured FLOP/s of a large matrix product."""
    side = 8192 if device.type == "cuda" else 1024
    # Random numbers: zeros draw less power, so clocks would rise.
    left, right = (
        torch.randn(side, side, device=device).to(PRECISIONS[precision])
        for _ in range(2)
    )
    for _ in range(3):
        left @ right
    timing = time_steps(lambda: left @ right, device, 0.5)
    return 2 * side**3 / timing.seconds


class PeakMemory:
    """Peak memory in GiB since creation or reset.

    On a CPU, the growth of the process since creation.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.before = 0.0
        if device.type == "cpu":
            trim_heap()
            self.before = resident_gib("VmRSS") or 0.0
        self.reset()

    def reset(self) -> None:
        """Starts a new measurement."""
        if self.device.type == "cuda":
            # Resetting fails before the first tensor.
            torch.zeros(1, device=self.device)
            synchronise(self.device)
            torch.cuda.reset_peak_memory_stats(self.device)
        elif self.device.type == "cpu":
            with suppress(OSError):  # Linux only
                Path("/proc/self/clear_refs").write_text("5")

    def gib(self) -> float | None:
        """The peak so far; None if the system does not report it."""
        if self.device.type == "cuda":
            synchronise(self.device)
            return torch.cuda.max_memory_allocated(self.device) / 2**30
        most = resident_gib("VmHWM") if self.device.type == "cpu" else None
        return None if most is None else most - self.before


def trim_heap() -> None:
    """Returns freed memory to Linux; else the next case would seem to need less."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def resident_gib(field: str) -> float | None:
    """A memory field of this process in GiB, from Linux."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith(f"{field}:")]
    return int(found[0]) / 2**20 if found else None


def device_name(device: torch.device) -> str:
    """The GPU's name, or the CPU's with its number of threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    name = cpu_name() if device.type == "cpu" else device.type.upper()
    return f"{name}, {counted(torch.get_num_threads(), 'thread')}"


def cpu_name() -> str:
    """The processor's name."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or os.uname().machine
