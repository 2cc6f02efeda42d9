"""Sets the number of CPU threads: one per idle core, and the same after a resume."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch

from t2t.data.resources import free_cores, num_cores
from t2t.errors import UserError
from t2t.training.run_files import ENVIRONMENT, read_json

VARIABLE = "OMP_NUM_THREADS"


class Threads(NamedTuple):
    """A number of threads, and the reason for it."""

    number: int
    reason: str

    def __str__(self) -> str:
        return f"CPU threads: {self.number} ({self.reason})."


def choose_threads(given: int | None = None, before: int | None = None) -> Threads:
    """The given number, else OMP_NUM_THREADS, else as before, else the idle cores.

    Two threads on one idle core wait for each other and are much slower than one.
    The last bits of sums depend on the number of threads, so a resumed run keeps
    its number.
    """
    if given is not None:
        chosen = Threads(given, "as requested")
    elif os.environ.get(VARIABLE):
        chosen = Threads(torch.get_num_threads(), VARIABLE)
    elif before is not None:
        return Threads(before, "as before the resume")
    else:
        free = free_cores()
        number = min(max(round(free), 1), torch.get_num_threads())
        return Threads(number, f"{free:.1f} of {num_cores()} cores are idle")
    if before in (None, chosen.number):
        return chosen
    note = f"the run started with {before}, so results may differ in the last bits"
    return Threads(chosen.number, f"{chosen.reason}; {note}")


def threads_of_run(folder: Path) -> int | None:
    """The number of threads that a run started with, from its folder."""
    try:
        number = read_json(folder / ENVIRONMENT).get("threads")
    except UserError:  # missing or damaged
        return None
    return number if isinstance(number, int) and number > 0 else None


@contextmanager
def use_free_cores(device: torch.device) -> Iterator[None]:
    """Uses as many torch threads as there are idle cores, on a CPU."""
    if device.type != "cpu":
        yield
        return
    with use_threads(choose_threads()):
        yield


@contextmanager
def use_threads(threads: Threads) -> Iterator[None]:
    """Sets the number of torch threads, and restores it afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads.number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
