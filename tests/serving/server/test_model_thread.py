"""Batches, order, waiting and cancelling in the model's thread."""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from t2t.serving.server.model_thread import ModelThread


class Doubling:
    """Doubles numbers once it may, and keeps the batches."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.may_run = threading.Event()

    def __call__(self, numbers: Sequence[int]) -> list[int]:
        self.may_run.wait(10)
        self.batches.append(list(numbers))
        if 13 in numbers:
            raise RuntimeError("thirteen")
        return [2 * number for number in numbers]


@contextmanager
def started(max_batch: int, max_wait: float) -> Iterator[tuple[ModelThread, Doubling]]:
    doubling = Doubling()
    thread: ModelThread[int, int] = ModelThread(doubling, max_batch, max_wait)
    try:
        yield thread, doubling
    finally:
        doubling.may_run.set()
        thread.close(5)


def test_items_that_wait_share_a_batch_in_order() -> None:
    with started(4, 0.0) as (thread, doubling):
        first = thread.submit(0)
        while not first.running():
            time.sleep(0.001)
        rest = [thread.submit(number) for number in range(1, 10)]
        doubling.may_run.set()
        results = [each.result(10) for each in [first, *rest]]
    assert [each.result for each in results] == [2 * number for number in range(10)]
    assert doubling.batches == [[0], [1, 2, 3, 4], [5, 6, 7, 8], [9]]
    assert [each.batch_size for each in results] == [1, 4, 4, 4, 4, 4, 4, 4, 4, 1]


def test_the_first_item_waits_for_others_so_long() -> None:
    with started(4, 0.3) as (thread, doubling):
        doubling.may_run.set()
        begun = time.perf_counter()
        alone = thread.submit(1).result(10)
        assert 0.25 < time.perf_counter() - begun < 2
        assert alone.wait_seconds == pytest.approx(0.3, abs=0.2)
        pair = [thread.submit(2), thread.submit(3)]
        assert [each.result(10).batch_size for each in pair] == [2, 2]


def test_a_full_batch_does_not_wait() -> None:
    with started(2, 60.0) as (thread, doubling):
        doubling.may_run.set()
        pair = [thread.submit(1), thread.submit(2)]
        assert [each.result(10).batch_size for each in pair] == [2, 2]


def test_cancelled_items_are_not_computed() -> None:
    with started(1, 0.0) as (thread, doubling):
        first = thread.submit(1)
        while not first.running():
            time.sleep(0.001)
        second, third = thread.submit(2), thread.submit(3)
        call = thread.call(lambda: 7)
        assert second.cancel()
        assert call.cancel()
        doubling.may_run.set()
        assert third.result(10).result == 6
    assert doubling.batches == [[1], [3]]


def test_an_error_is_that_of_its_batch_alone() -> None:
    with started(2, 0.0) as (thread, doubling):
        first = thread.submit(1)
        while not first.running():
            time.sleep(0.001)
        futures = [thread.submit(number) for number in (13, 2, 3)]
        doubling.may_run.set()
        for future in futures[:2]:
            with pytest.raises(RuntimeError, match="thirteen"):
                future.result(10)
        assert futures[2].result(10).result == 6
        with pytest.raises(ZeroDivisionError):
            thread.call(lambda: 1 // 0).result(10)


def test_calls_and_batches_take_turns() -> None:
    with started(1, 0.0) as (thread, doubling):
        order: list[str] = []
        first = thread.submit(0)
        while not first.running():
            time.sleep(0.001)
        items = [thread.submit(number) for number in (1, 2)]
        for number, item in enumerate(items, 1):
            item.add_done_callback(lambda _, number=number: order.append(str(number)))
        calls = [thread.call(lambda name=name: order.append(name)) for name in "abc"]
        doubling.may_run.set()
        for call in calls:
            call.result(10)
    assert order == ["a", "1", "b", "2", "c"]
    assert threading.current_thread() is threading.main_thread()
