"""Threads that compute on a CPU: as many as cores are free, the same after a resume."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch

from t2t.data.limits import free_cores, num_cores
from t2t.errors import UserError
from t2t.training.folder import ENVIRONMENT, read_json

VARIABLE = "OMP_NUM_THREADS"


class Threads(NamedTuple):
    """How many threads compute, and why."""

    number: int
    reason: str

    def __str__(self) -> str:
        return f"CPU threads: {self.number} ({self.reason})."


def choose_threads(given: int | None = None, before: int | None = None) -> Threads:
    """What is given, by an option or the environment; else as before, or what is free.

    Two threads on one free core wait for each other, and are many times slower than
    one. Sums depend on the number in their last bits, so a run keeps that it began
    with.
    """
    if given is not None:
        chosen = Threads(given, "as asked for")
    elif os.environ.get(VARIABLE):
        chosen = Threads(torch.get_num_threads(), VARIABLE)
    elif before is not None:
        return Threads(before, "as this run began")
    else:
        free = free_cores()
        number = min(max(round(free), 1), torch.get_num_threads())
        return Threads(number, f"{free:.1f} of {num_cores()} cores are free")
    if before in (None, chosen.number):
        return chosen
    note = f"the run began with {before}, so its last bits may differ"
    return Threads(chosen.number, f"{chosen.reason}; {note}")


def threads_before(folder: Path) -> int | None:
    """The number of threads that a run folder says its run began with."""
    try:
        number = read_json(folder / ENVIRONMENT).get("threads")
    except UserError:  # there is none, or it is damaged
        return None
    return number if isinstance(number, int) and number > 0 else None


@contextmanager
def use_free_cores(device: torch.device) -> Iterator[None]:
    """Lets torch compute on a CPU with as many threads as cores are free."""
    if device.type != "cpu":
        yield
        return
    with use_threads(choose_threads()):
        yield


@contextmanager
def use_threads(threads: Threads) -> Iterator[None]:
    """Lets torch compute with so many threads, and with those it had afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads.number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
