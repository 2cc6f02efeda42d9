"""Processes that read and decode the images of batches, seen from the training one."""

import pickle
import selectors
import socket
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import torch

from t2t.data.decoding.decode import DecodeOptions
from t2t.data.sources.base import Indices, Source
from t2t.data.streaming.crew import ThreadCrew
from t2t.data.streaming.memory import Block, Memory
from t2t.data.streaming.requests import Cutter, Request, Task
from t2t.data.streaming.worker import LONGEST_MESSAGE, answer_of, pickled, start_workers
from t2t.errors import LocalError, on_one_line

# Images of a task: enough that handing out work costs little.
_MOST_READ = 64
_MOST_DECODED = 8
# Tasks a process is given at once: one that it does and one to go on with.
_NUM_GIVEN = 2
# Workers that may end over one task before it is given up.
_MOST_DEATHS = 2


@dataclass(eq=False)
class Worker:
    """One process, and what it was given."""

    socket: socket.socket
    tasks: dict[int, tuple[Task, Block]] = field(default_factory=dict)
    pid: int | None = None


class ProcessCrew:
    """Processes that share memory with this one, which only sends and gets numbers.

    One that ends is told of and the others do its work; after the last, threads do, as
    they do, where `threads_first`, during the seconds that processes take to start.
    """

    def __init__(
        self,
        source: Source,
        decoding: DecodeOptions,
        num_workers: int,
        device: torch.device,
        warn: Callable[[str], None],
        *,
        threads_first: bool = False,
    ) -> None:
        self.memory = Memory(device, shared=True)
        self._source = source
        told = pickled(source, decoding)
        self.keeper, sockets = start_workers(self, told, num_workers, self.memory)
        self.workers = [Worker(socket) for socket in sockets]
        self._spare = ThreadCrew(source, decoding, num_workers, self.memory)
        self._cutter = Cutter(_MOST_READ, _MOST_DECODED)
        self._tell = warn
        self._have_started = not threads_first
        self._queue: deque[Task] = deque()
        self._number = 0
        self._buffer = bytearray(LONGEST_MESSAGE)
        self._lock = threading.Lock()
        self._open = ExitStack()
        self._spare_works = False
        self._reason = ""
        self._error: BaseException | None = None
        self._requests: weakref.WeakSet[Request] = weakref.WeakSet()

    @contextmanager
    def at_work(self) -> Iterator[None]:
        self._spare_works, self._error = False, None
        ours, theirs = socket.socketpair()
        with ExitStack() as self._open, ours, theirs:
            listener = threading.Thread(
                target=self._listen_or_fail,
                args=(theirs,),
                name="t2t-listen",
                daemon=True,
            )
            listener.start()
            try:
                yield
            finally:
                ours.close()
                listener.join()
                with self._lock:
                    self._queue.clear()

    def ask(
        self, request: Request, places: Indices, *, decodes: bool, is_read: bool = False
    ) -> None:
        tasks = self._cutter.tasks(request, places, decodes=decodes, is_read=is_read)
        with self._lock:
            if self._error is not None:
                raise self._error
            self._requests.add(request)
            # What a batch that is nearly made still lacks goes first.
            if is_read:
                self._queue.extendleft(reversed(tasks))
            else:
                self._queue.extend(tasks)
            self._give_out()

    def _give_out(self) -> None:
        """Sends tasks to whoever has the fewest; the caller holds the lock."""
        while self._queue:
            if not (self.workers and self._have_started):
                self._do_here()
                return
            worker = min(self.workers, key=lambda worker: len(worker.tasks))
            if len(worker.tasks) >= _NUM_GIVEN:
                return
            task = self._queue.popleft()
            if not task.request.is_released:
                self._send(worker, task)

    def _send(self, worker: Worker, task: Task) -> None:
        try:
            block = self.memory.take(task.num_bytes + 1)
        except Exception as error:
            task.request.failed(error)
            return
        self.memory.array[block.end - 1] = 0  # as long as nobody has begun
        self._number += 1
        worker.tasks[self._number] = task, block
        message = self._number, *block, task.decodes, task.wanted.tobytes()
        with suppress(OSError):  # it has ended, as the listener will find
            worker.socket.send(pickle.dumps(message))

    def _do_here(self) -> None:
        if not self._spare_works:
            self._open.enter_context(self._spare.at_work())
            self._spare_works = True
        while self._queue:
            self._spare.submit(self._queue.popleft())

    def _listen_or_fail(self, stop: socket.socket) -> None:
        """Listens; should that end too early, nobody waits for what cannot come."""
        try:
            self._listen(stop)
        except BaseException as error:
            with self._lock:
                self._error = error
                for request in self._requests:
                    request.failed(error)

    def _listen(self, stop: socket.socket) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(stop, selectors.EVENT_READ)
            for worker in self.workers:
                selector.register(worker.socket, selectors.EVENT_READ, worker)
            while True:
                for key, _ in selector.select():
                    worker = key.data
                    if worker is None:
                        return
                    if not self._receive(worker):
                        selector.unregister(key.fileobj)

    def _receive(self, worker: Worker) -> bool:
        """Takes one message; False where the worker has ended."""
        try:
            length = worker.socket.recv_into(self._buffer)
        except OSError:
            length = 0
        if not length:
            with self._lock:
                self._bury(worker)
                self._give_out()
            return False
        number, answer = answer_of(memoryview(self._buffer)[:length])
        if number == 0:
            self._greeted(worker, answer)
            return True
        with self._lock:
            task, block = worker.tasks.pop(number)
        self._arrived(task, block, answer)
        with self._lock:
            self._give_out()
        return True

    def _arrived(self, task: Task, block: Block, answer: Any) -> None:
        if isinstance(answer, BaseException):
            self.memory.give_back(block)
            task.request.failed(answer)
            return
        self._cutter.learn(task, answer)
        rest = task.request.arrived(task, block, answer)
        if rest is not None:
            with self._lock:
                self._queue.appendleft(rest)

    def _greeted(self, worker: Worker, answer: int | str) -> None:
        """The first message: a process's number, or why it could not start."""
        if isinstance(answer, int):
            worker.pid = answer
            self._have_started = True
        else:
            self._reason = answer

    def _bury(self, worker: Worker) -> None:
        """Shares out what a dead worker had to do; the caller holds the lock."""
        self.workers.remove(worker)
        worker.socket.close()
        # What ended one after the other would end this process next.
        most = _MOST_DEATHS if self.workers else 1
        for task, block in worker.tasks.values():
            was_begun = self.memory.array[block.end - 1]
            self.memory.give_back(block)
            again = task.after_a_death() if was_begun else task
            if again.num_deaths <= most:
                self._queue.appendleft(again)
                continue
            task.request.failed(self._blame(again))
        self._tell_of(worker)

    def _blame(self, task: Task) -> LocalError:
        """What ends the run: a lack of memory must not change what it trains on."""
        indices = task.request.indices[task.places].tolist()
        names = [f"  {on_one_line(self._source.name(index))}" for index in indices]
        return LocalError(
            f"{task.num_deaths} worker processes ended over the same images, for lack "
            "of memory or over a file that its decoder does not survive: try fewer "
            "--workers, or remove the one that does it from among\n" + "\n".join(names)
        )

    def _tell_of(self, worker: Worker) -> None:
        num_left = len(self.workers)
        if worker.pid is None:
            if not num_left:
                why = f" ({self._reason})" if self._reason else ""
                self._tell(f"Worker processes could not start{why}: threads do it.")
            return
        others = f"the other {num_left} do its work"
        if not num_left:
            others = "it was the last: threads do its work"
        why = "perhaps for lack of memory"
        self._tell(f"Worker process {worker.pid} ended, {why}; {others}.")
