"""Who reads and decodes the images of batches: here threads of this process."""

from collections.abc import Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from t2t.data.decoding.decode import DecodeOptions
from t2t.data.sources.base import Indices, Source
from t2t.data.streaming.filling import Filler
from t2t.data.streaming.memory import Memory
from t2t.data.streaming.requests import Cutter, Request, Task

# One thread reads all files of a batch: more would queue for the GIL at every system
# call. Where the storage is far, as many as this wait for it.
_MOST_READ = 1 << 30
_NUM_READERS = 64
_MOST_DECODED = 8


class Crew(Protocol):
    """Fills requests, for one iteration over the batches at a time."""

    memory: Memory

    def at_work(self) -> AbstractContextManager[None]:
        """A context in which requests are filled."""
        ...

    def ask(
        self, request: Request, places: Indices, *, decodes: bool, is_read: bool = False
    ) -> None:
        """Has images of a request read, or decoded, wherever there is a worker."""
        ...


class ThreadCrew:
    """Threads of this process."""

    def __init__(
        self,
        source: Source,
        decoding: DecodeOptions,
        num_workers: int,
        memory: Memory,
    ) -> None:
        self.memory = memory
        self._num_workers = num_workers
        self._filler = Filler(source, decoding, memory.array, _NUM_READERS)
        self._cutter = Cutter(_MOST_READ, _MOST_DECODED)
        self._pool: ThreadPoolExecutor | None = None

    @contextmanager
    def at_work(self) -> Iterator[None]:
        self._filler.halted.clear()
        self._pool = ThreadPoolExecutor(self._num_workers, "t2t-decode")
        try:
            yield
        finally:
            self._filler.halted.set()
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._filler.close()

    def ask(
        self, request: Request, places: Indices, *, decodes: bool, is_read: bool = False
    ) -> None:
        tasks = self._cutter.tasks(request, places, decodes=decodes, is_read=is_read)
        for task in tasks:
            self.submit(task)

    def submit(self, task: Task) -> None:
        """Has a task done, unless all are going home."""
        assert self._pool is not None
        try:
            self._pool.submit(self._do, task)
        except RuntimeError:  # the pool was shut meanwhile
            task.request.failed(CancelledError())

    def _do(self, task: Task) -> None:
        if task.request.is_released:
            return
        block = None
        try:
            block = self.memory.take(task.num_bytes)
            filled = self._filler.fill(task.wanted, task.decodes, block)
        except BaseException as error:
            if block is not None:
                self.memory.give_back(block)
            task.request.failed(error)
            return
        self._cutter.learn(task, filled)
        rest = task.request.arrived(task, block, filled)
        if rest is not None:
            self.submit(rest)
