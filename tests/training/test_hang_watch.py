"""A process that hangs ends the run, and is named; one that takes long may go on."""

import json
import os
import platform
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.distributed import DistNetworkError, HashStore
from two_processes import environments

from t2t.training import hang_watch
from t2t.training.distributed import World
from t2t.training.hang_watch import EXIT_CODE, Beat, HangWatch, Heard, hanging
from t2t.training.recipe import Recipe
from t2t.training.runtime import Runtime

LIMIT = 60.0
SECONDS = 3.0
"""The limit of tests with processes."""


def heard(step: int, *, at: float = 99, moved: float = 99, paused: bool = False) -> Any:
    return Heard(Beat(1, step, paused, f"node{step}"), at, moved)


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        # All go on.
        ({0: heard(7), 1: heard(6)}, None),
        # The one behind hangs, not the one that waits for it.
        (
            {0: heard(7, moved=30), 1: heard(6, moved=20)},
            "Process 1 on node6 did not start step 7 for 80 s, while the others wait",
        ),
        (
            {0: heard(7, moved=30), 1: heard(6, moved=20), 2: heard(6, moved=25)},
            "Processes 1 on node6, 2 on node6 did not start step 7 for 75 s",
        ),
        # One of those behind still moved a moment ago.
        ({0: heard(7, moved=0), 1: heard(6, moved=0), 2: heard(6, moved=50)}, None),
        # Evaluations, checkpoints and compiling may take long.
        ({0: heard(7, moved=0), 1: heard(6, moved=0, paused=True)}, None),
        ({0: heard(7, moved=0, paused=True), 1: heard(7, moved=0)}, None),
        # But a stopped process is missed at any time.
        (
            {0: heard(7), 1: heard(6, at=30, moved=0, paused=True)},
            "Process 1 on node6 has not answered for 70 s, since step 6",
        ),
        (
            {0: heard(7, moved=9), 1: heard(7, moved=5)},
            "No process has finished step 7 for 91 s: a GPU or the network hangs",
        ),
        # Perhaps one of them will be silent for longer than the limit.
        ({0: heard(7, moved=30), 1: heard(7, moved=15)}, None),
        ({}, None),
    ],
)
def test_the_process_that_hangs_is_named(
    others: dict[int, Heard], expected: str | None
) -> None:
    found = hanging(others, 100.0, LIMIT)
    assert found is None if expected is None else found and found.startswith(expected)


def test_many_processes_are_named_in_few_words() -> None:
    others = {0: heard(8, moved=0)} | {rank: heard(7, moved=0) for rank in range(1, 90)}
    words = hanging(others, 100.0, LIMIT)
    assert words is not None
    assert words.startswith("Processes 1 on node7, 2 on node7, 3 on node7, 4 on node7 ")
    assert " and 85 more did not start step 8" in words


def test_times_are_those_of_the_one_that_listens() -> None:
    one = Heard(Beat(1, 5, False, "a"), 0.0, 0.0)
    one.hear(Beat(1, 5, False, "a"), 10.0)  # the same beat, read again
    assert (one.at, one.moved_at) == (0.0, 0.0)
    one.hear(Beat(2, 5, False, "a"), 20.0)
    assert (one.at, one.moved_at) == (20.0, 0.0)
    one.hear(Beat(3, 6, False, "a"), 30.0)
    assert (one.at, one.moved_at) == (30.0, 30.0)
    one.hear(Beat(4, 6, True, "a"), 40.0)
    assert one.moved_at == 40.0


class Clonable(HashStore):  # type: ignore[misc]
    """A store in this process."""

    def clone(self) -> "Clonable":
        return self


def watch(rank: int, store: Any, minutes: float = 1.0) -> HangWatch:
    world = World(rank, 2, torch.device("cpu"), store=store)
    found = HangWatch(world, minutes, lambda words: None)
    found.store = store
    found.answered_at = time.monotonic()
    return found


def test_processes_read_what_they_write() -> None:
    store = Clonable()
    first, second = watch(0, store), watch(1, store)
    second.start_step(4)
    second.exchange()
    first.start_step(5)
    first.exchange()
    host = platform.node()
    assert {rank: each.beat for rank, each in first.heard.items()} == {
        0: Beat(1, 5, False, host),
        1: Beat(1, 4, False, host),
    }
    second.pause()
    second.exchange()
    first.exchange()
    assert first.heard[1].beat == Beat(2, 4, True, host)
    now = time.monotonic()
    assert first.find_reason(now) is None
    first.heard[1].at -= 100
    assert (first.find_reason(now) or "").startswith(f"Process 1 on {host} has not")
    # While the store does not answer, what was heard is old; then that is the reason.
    first.answered_at -= 40
    assert first.find_reason(now) is None
    first.answered_at -= 60
    assert (first.find_reason(now) or "").startswith(f"Process 0 on {host}, or the")
    first.forgive(now)
    assert first.find_reason(now) is None
    store.set("t2t/beat/1", "")  # it has finished
    first.exchange()
    assert first.heard.keys() == {0}


def test_no_process_is_watched_without_need() -> None:
    for world, minutes in (
        (World(0, 1, torch.device("cpu"), store=Clonable()), 1.0),
        (World(0, 2, torch.device("cpu")), 1.0),
        (World(0, 2, torch.device("cpu"), store=Clonable()), 0.0),
    ):
        with HangWatch(world, minutes, lambda words: None) as found:
            assert not found.is_watching


def test_a_process_that_was_stopped_itself_names_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watching = watch(0, Clonable())
    limit, now = watching.limit, 100.0
    beat = Beat(1, 3, False, "node1")
    watching.heard = {1: Heard(beat, now, now)}
    times = iter([now, now + 0.6 * limit, now + 1.1 * limit])
    clock = SimpleNamespace(monotonic=lambda: next(times))
    monkeypatch.setattr(hang_watch, "time", clock)
    waits = iter([False, False, True])
    monkeypatch.setattr(watching.ended, "wait", lambda seconds: next(waits))
    monkeypatch.setattr(watching, "end", lambda reason: pytest.fail(reason))
    watching.answered_at = now + limit
    watching.keep_watching()
    assert watching.heard[1].at == now + 0.6 * limit


def test_the_watch_ends_with_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hang_watch, "MAX_SECONDS", 0.01)
    monkeypatch.setattr(hang_watch, "leave", lambda: pytest.fail("ended the run"))
    store = Clonable()
    with watch(0, store):
        while not store.check(["t2t/beat/0"]):
            time.sleep(0.01)
        assert json.loads(store.get("t2t/beat/0"))[1:3] == [0, True]
    assert store.get("t2t/beat/0") == b""


def test_the_log_is_written_before_the_process_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A beat of the same process does not end it meanwhile, but ends the others."""
    events: list[str] = []
    monkeypatch.setattr(hang_watch, "leave", lambda: events.append("left"))
    store = Clonable()
    first, second = watch(0, store), watch(1, store)

    def note(words: str) -> None:
        first.exchange()
        events.append(words.partition(",")[0])
        second.exchange()

    first.note = note
    first.end("Process 1 hangs")
    assert events == ["Process 1 hangs", "left", "left"]


class Gone(Clonable):
    """A store whose process has left."""

    def __init__(self, error: type[RuntimeError]) -> None:
        super().__init__()
        self.error = error

    def add(self, key: str, amount: int) -> int:
        raise self.error


@pytest.mark.parametrize(
    ("error", "reported"), [(DistNetworkError, []), (RuntimeError, ["Process 1 hangs"])]
)
def test_what_process_0_has_said_is_not_said_again(
    error: type[RuntimeError], reported: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hang_watch, "leave", lambda: None)
    words: list[str] = []
    one = watch(1, Gone(error))
    one.note = words.append
    one.end("Process 1 hangs")
    assert [each.partition(",")[0] for each in words] == reported


def test_a_run_that_fails_meanwhile_waits_for_the_report(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The others have left, so that a collective of this process fails."""
    events: list[str] = []
    monkeypatch.setattr(hang_watch, "MAX_SECONDS", 0.01)
    monkeypatch.setattr(hang_watch, "leave", lambda: events.append("left"))
    monkeypatch.setattr(HangWatch, "find_reason", lambda *_: "Process 1 hangs")

    def note(words: str) -> None:
        time.sleep(0.2)
        events.append("noted")

    one = watch(0, Clonable())
    one.note = note
    with one:
        while not one.is_ending:
            time.sleep(0.01)
    assert events[:2] == ["noted", "left"]


def test_a_collective_that_fails_as_another_process_leaves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left: list[str] = []
    monkeypatch.setattr(hang_watch, "leave", lambda: left.append("left"))
    store = Clonable()
    one = watch(0, store)
    one.interval = 9.0
    for ends_with in (None, "t2t/hung"):
        if ends_with:
            store.add(ends_with, 1)
        with suppress(RuntimeError), one:
            while not store.check(["t2t/beat/0"]):
                time.sleep(0.01)
            raise RuntimeError
        one.ended.clear()
        assert bool(left) == bool(ends_with)


@pytest.fixture
def running(
    start: Callable[..., BaseProcess], tiny: Callable[..., Recipe], tmp_path: Path
) -> Iterator[Callable[[str], list[BaseProcess]]]:
    """Two processes of a long run; killed at the end."""
    workers: list[BaseProcess] = []

    def run(name: str) -> list[BaseProcess]:
        runtime = Runtime(device="cpu", workers=1, hang_minutes=SECONDS / 60)
        recipe = replace(tiny(), epochs=100_000, evaluate_every=100_000)
        for each in environments(2):
            given = (recipe, tmp_path / "run", runtime, each, tmp_path)
            workers.append(start(name, *given))
        return workers

    yield run
    for worker in workers:
        worker.kill()
        worker.join()


def test_a_stopped_process_ends_the_run(
    running: Callable[[str], list[BaseProcess]], tmp_path: Path
) -> None:
    first, second = running("train_and_note_errors")
    metrics = tmp_path / "run" / "metrics.jsonl"
    deadline = time.monotonic() + 60
    while not (metrics.exists() and metrics.stat().st_size):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert second.pid is not None
    os.kill(second.pid, signal.SIGSTOP)
    stopped = time.monotonic()
    first.join(60)
    assert first.exitcode == EXIT_CODE
    # The last beat came a moment before it was stopped.
    assert 0.8 * SECONDS < time.monotonic() - stopped < SECONDS + 5
    printed = (tmp_path / "errors-0.txt").read_text()
    assert f"Process 1 on {platform.node()} has not answered for " in printed
    assert "torchrun --max-restarts resumes it" in printed
    assert "has not answered for" in (tmp_path / "run" / "log.txt").read_text()


def test_a_process_that_stays_behind_ends_the_run(
    running: Callable[[str], list[BaseProcess]], tmp_path: Path
) -> None:
    """Its threads live: it waits for something else, such as a disk."""
    workers = running("train_and_stay_behind")
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [EXIT_CODE, EXIT_CODE]
    printed = [(tmp_path / f"errors-{rank}.txt").read_text() for rank in (0, 1)]
    words = f"Process 1 on {platform.node()} did not start step 6 for "
    assert [words in each for each in printed].count(True) == 1  # one process says it
