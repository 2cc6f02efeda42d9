"""The one thread that runs the model: batches of images, and other calls between."""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Generic, NamedTuple, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")
Value = TypeVar("Value")


class Computed(NamedTuple, Generic[Result]):
    """A result, and how it came about."""

    result: Result
    batch_size: int
    wait_seconds: float
    model_seconds: float


class _Waiting(NamedTuple, Generic[Item, Result]):
    item: Item
    future: "Future[Computed[Result]]"
    since: float


class ModelThread(Generic[Item, Result]):
    """Computes items in batches in the order of their arrival.

    A batch starts when `max_batch` items wait, or when the first of them has waited for
    `max_wait` seconds: while a batch is computed, the next one gathers.
    """

    def __init__(
        self,
        compute: Callable[[Sequence[Item]], Sequence[Result]],
        max_batch: int,
        max_wait: float,
    ) -> None:
        self._compute = compute
        self._max_batch = max_batch
        self._max_wait = max_wait
        self._items: deque[_Waiting[Item, Result]] = deque()
        self._calls: deque[Callable[[], None]] = deque()
        self._changed = threading.Condition()
        self._closing = False
        # A daemon: the program may end while a large model computes.
        self._thread = threading.Thread(target=self._run, name="t2t-model", daemon=True)
        self._thread.start()

    def submit(self, item: Item) -> "Future[Computed[Result]]":
        """The result to come; a cancelled future's item is not computed."""
        waiting = _Waiting(item, Future[Computed[Result]](), time.perf_counter())
        with self._changed:
            self._items.append(waiting)
            self._changed.notify()
        return waiting.future

    def call(self, function: Callable[[], Value]) -> "Future[Value]":
        """The value of a function that this thread calls between two batches."""
        future: Future[Value] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                value = function()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(value)

        with self._changed:
            self._calls.append(run)
            self._changed.notify()
        return future

    def close(self, seconds: float) -> None:
        """Stops after the current batch, and waits so long for it."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(seconds)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._items or self._calls or self._closing
                )
                if self._closing:
                    return
                batch = self._gather()
            if batch:
                self._compute_batch(batch)
            with self._changed:  # one call after every batch: neither starves
                call = self._calls.popleft() if self._calls else None
            if call is not None:
                call()

    def _gather(self) -> list[_Waiting[Item, Result]]:
        """The next items, after waiting for more; the lock is held."""
        if not self._items:
            return []
        until = self._items[0].since + self._max_wait
        while len(self._items) < self._max_batch and not self._closing:
            left = until - time.perf_counter()
            if left <= 0:
                break
            self._changed.wait(left)
        batch: list[_Waiting[Item, Result]] = []
        while self._items and len(batch) < self._max_batch:
            waiting = self._items.popleft()
            if waiting.future.set_running_or_notify_cancel():
                batch.append(waiting)
        return batch

    def _compute_batch(self, batch: list[_Waiting[Item, Result]]) -> None:
        started = time.perf_counter()
        try:
            results = self._compute([waiting.item for waiting in batch])
        except BaseException as error:
            for waiting in batch:
                waiting.future.set_exception(error)
            return
        seconds = time.perf_counter() - started
        for waiting, result in zip(batch, results, strict=True):
            waited = started - waiting.since
            waiting.future.set_result(Computed(result, len(batch), waited, seconds))
