"""A process that is slower than the others is named."""

import time
from collections.abc import Generator
from typing import Any

import pytest
import torch
import torch.distributed as dist

from t2t.training import rank_times
from t2t.training.distributed import World
from t2t.training.rank_times import OwnTimes, RankTimes, Stopwatch, slow_processes

CPU = torch.device("cpu")


def times(waited: float = 0.0, evaluating: float = 5.0) -> OwnTimes:
    """Of 100 steps that took 10 s."""
    return OwnTimes("node", 100, 10.0, waited, evaluating)


def test_alike_processes_are_not_named() -> None:
    assert slow_processes([times()] * 4) == []
    assert slow_processes([times(evaluating=5.9), *[times()] * 3]) == []
    assert slow_processes([times(waited=1.9), *[times()] * 3]) == []
    # All wait alike: then it is no process, but the data.
    assert slow_processes([times(waited=9.0)] * 4) == []


def test_short_times_are_noise() -> None:
    few = OwnTimes("node", 2, 0.2, 0.9, 0.9)
    fast = OwnTimes("node", 2, 0.2, 0.0, 0.1)
    assert slow_processes([few, fast, fast]) == []
    assert slow_processes([OwnTimes("node", 0, 0.0, 0.0, 0.0)] * 2) == []


@pytest.mark.parametrize("num_processes", [2, 3, 1024])
def test_a_slow_process_is_named(num_processes: int) -> None:
    """Also of two: the median is then that of the faster one."""
    others = [times()] * (num_processes - 1)
    ((rank, kind, words),) = slow_processes([*others, times(evaluating=6.1)])
    assert (rank, kind) == (num_processes - 1, "evaluation")
    assert f"Process {rank} on node is slow: it took 6.1 s to evaluate" in words
    assert "the median process 5.0 s" in words
    ((rank, kind, words),) = slow_processes([*others, times(waited=3.0)])
    assert (rank, kind) == (num_processes - 1, "data")
    assert "it waits 30 ms for the images of a step, the median process 0 ms" in words
    assert "of 100 ms that a step takes" in words


def test_waits_for_images_and_evaluations_are_timed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gathered: list[OwnTimes] = []

    def gather(found: list[Any], own: OwnTimes, group: object) -> None:
        gathered.append(own)
        found[:] = [own, own._replace(evaluating=own.evaluating / 9)]

    monkeypatch.setattr(dist, "all_gather_object", gather)
    monkeypatch.setattr(rank_times, "MIN_SECONDS", 0.001)
    warned: list[str] = []
    found = RankTimes(World(0, 2, CPU, control="group"), warned.append)

    def slowly() -> Generator[Any]:
        for number in range(3):
            time.sleep(0.02)
            yield number

    for _ in range(2):
        for _ in found.timed(slowly()):
            time.sleep(0.01)
        found.start_evaluation()
        time.sleep(0.05)
        found.evaluation.lap(7)
        time.sleep(0.2)  # for others
        found.compare()
    for own in gathered:
        assert own.num_steps == 3
        assert 0.06 <= own.waited < own.seconds - 0.03
        assert 0.05 <= own.evaluating < 0.2
    assert len(warned) == 1  # the second time it is known
    assert warned[0].startswith("Process 0 on ")


def test_one_process_compares_nothing() -> None:
    warned: list[str] = []
    found = RankTimes(World(0, 1, CPU), warned.append)
    found.start_evaluation()
    found.compare()
    assert not warned


@pytest.mark.cuda
def test_work_of_a_device_is_timed() -> None:
    stopwatch = Stopwatch(torch.device("cuda"))
    stopwatch.start()
    torch.cuda._sleep(10**8)
    stopwatch.lap()
    torch.cuda._sleep(10**9)
    assert 0.01 < stopwatch.seconds() < 0.4
