"""The worker pool: threads and processes that read and decode images.

    ImageStream (stream.py)               WorkerPool (here)    workers (image_reader.py)

    sampler ─► Request ── submit ──► tasks of a few images ─► queue
               (shared_memory.py)                               │ dispatch
                  ▲   a row per image: kind,                    ├──► thread ───┐
                  │   start, length, size                       └──► process ──┤
                  │                                                  (socket)  │
                  └───────────────── rows, damage ◄────────────────────────────┤
                                                                               │ writes
    Arena (shared_memory.py): a block per task  ◄────── files and pixels ──────┘
                  │
                  └─► nvJPEG or copy ─► Ragged on the device ─► crops ─► Batch

Only indices and rows travel through queue and sockets; pixels are written once, to a
block. A process has at most `_MAX_TASKS_PER_PROCESS` tasks and replies in order. If a
block is too small, the images that did not fit become a task with a larger block.
"""

import pickle
import subprocess
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace

import numpy as np
import torch

from t2t.data.decoding.decode import DecodeOptions
from t2t.data.sources.base import Indices, Source
from t2t.data.streaming.image_reader import ImageReader, ReadResult
from t2t.data.streaming.shared_memory import Arena, Block, Request
from t2t.data.streaming.worker import MAX_MESSAGE, pickled, start_workers
from t2t.data.streaming.worker_process import ReadTask, WorkerProcess, listening
from t2t.errors import LocalError, on_one_line

# Images per task that are decoded: at least 8, so that dispatching costs little, and
# more if they are small, up to a total of 1 MiB or 64 images.
_MIN_DECODED = 8
_SMALL_TASK_BYTES = 1 << 20
_MAX_IMAGES = 64
# One thread reads all files of a batch, since several would wait for the GIL at every
# system call. If the storage is slow, this many threads read at once.
_MAX_IMAGES_PER_THREAD = 1 << 30
_NUM_READERS = 64
# The current task of a process, and the next.
_MAX_TASKS_PER_PROCESS = 2
# Processes that may die over one task before it fails.
_MAX_DEATHS = 2
# The ratio of a block's size to what recent images would need.
_HEADROOM = 1.4


class WorkerPool:
    """Reads and decodes images of a source, for one iteration at a time.

    By processes if `processes`, else by threads of this process. Threads also do the
    work after the last process has died and, with `threads_first`, until the first one
    has started, which takes seconds. If a process dies, `warn` is called and the others
    do its work.
    """

    def __init__(
        self,
        source: Source,
        decoding: DecodeOptions,
        num_workers: int,
        device: torch.device,
        warn: Callable[[str], None],
        *,
        processes: bool,
        threads_first: bool = False,
    ) -> None:
        self.arena = Arena(device, shared=processes)
        self.launcher: subprocess.Popen[bytes] | None = None
        self.workers: list[WorkerProcess] = []
        if processes:
            sent = pickled(source, decoding)
            self.launcher, sockets = start_workers(self, sent, num_workers, self.arena)
            self.workers = [WorkerProcess(socket) for socket in sockets]
        self._source = source
        self._num_workers = num_workers
        self._warn = warn
        self._have_started = not threads_first
        self._reader = ImageReader(source, decoding, self.arena.array, _NUM_READERS)
        self._threads: ThreadPoolExecutor | None = None
        self._max_images = _MAX_IMAGES if processes else _MAX_IMAGES_PER_THREAD
        self._mean_bytes = {False: 2.0**17, True: 2.0**19}
        self._queue: deque[ReadTask] = deque()
        self._buffer = bytearray(MAX_MESSAGE)
        self._lock = threading.RLock()
        self._is_running = False
        self._start_error = ""
        self._error: BaseException | None = None
        self._requests: weakref.WeakSet[Request] = weakref.WeakSet()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Runs tasks inside this context."""
        self._error = None
        self._reader.is_stopped = False
        self._is_running = True
        try:
            replies = listening(self.workers, self._receive, self._fail)
            with replies if self.workers else nullcontext():
                yield
        finally:
            self._reader.is_stopped = True
            with self._lock:
                self._is_running = False
                self._queue.clear()
                threads, self._threads = self._threads, None
            if threads is not None:
                threads.shutdown(wait=True, cancel_futures=True)
            self._reader.close()

    def submit(
        self,
        request: Request,
        positions: Indices,
        *,
        decodes: bool,
        is_read: bool = False,
    ) -> None:
        """Queues images of a request to be read and, if `decodes`, decoded."""
        mean = self._mean_bytes[decodes]
        most = self._max_images
        if decodes:
            most = min(max(int(_SMALL_TASK_BYTES / mean), _MIN_DECODED), _MAX_IMAGES)
        num_tasks = -(-len(positions) // most)
        tasks = [
            ReadTask(request, some, decodes, is_read, int(_HEADROOM * mean * len(some)))
            for some in (np.array_split(positions, num_tasks) if num_tasks else ())
        ]
        request.add_tasks(num_tasks)
        with self._lock:
            if self._error is not None:
                raise self._error
            self._requests.add(request)
            # The last images that a batch needs go first.
            if is_read:
                self._queue.extendleft(reversed(tasks))
            else:
                self._queue.extend(tasks)
            self._dispatch()

    def _dispatch(self) -> None:
        """Gives tasks to the least busy processes, or to threads."""
        with self._lock:
            while self._queue:
                if not (self.workers and self._have_started):
                    self._run_in_thread(self._queue.popleft())
                    continue
                worker = min(self.workers, key=lambda worker: len(worker.tasks))
                if len(worker.tasks) >= _MAX_TASKS_PER_PROCESS:
                    return
                task = self._queue.popleft()
                if not task.request.is_released:
                    self._send(worker, task)

    def _send(self, worker: WorkerProcess, task: ReadTask) -> None:
        try:
            block = self.arena.allocate(task.num_bytes + 1)
        except Exception as error:
            task.request.fail(error)
            return
        self.arena.array[block.end - 1] = 0  # the worker sets this when it starts
        worker.tasks.append((task, block))
        message = *block, task.decodes, task.wanted.tobytes()
        with suppress(OSError):  # it has died; the listener will notice
            worker.socket.send(pickle.dumps(message))

    def _run_in_thread(self, task: ReadTask) -> None:
        if not self._is_running:
            task.request.fail(CancelledError())
            return
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._num_workers, "t2t-decode")
        self._threads.submit(self._run_task, task)

    def _run_task(self, task: ReadTask) -> None:
        """Runs a task in this thread."""
        if task.request.is_released:
            return
        try:
            block = self.arena.allocate(task.num_bytes)
        except BaseException as error:
            task.request.fail(error)
            return
        reply: ReadResult | BaseException
        try:
            reply = self._reader.read_into(block, task.wanted, task.decodes)
        except BaseException as error:
            reply = error
        self._complete(task, block, reply)

    def _complete(
        self, task: ReadTask, block: Block, reply: ReadResult | BaseException
    ) -> None:
        """Hands a task's result to its request; queues the images that did not fit."""
        if isinstance(reply, BaseException):
            self.arena.free(block)
            task.request.fail(reply)
            return
        rows, reasons, num_bytes_missing = reply
        # The mean of recent images; a single huge one changes it little.
        num_images = len(rows) + (num_bytes_missing > 0)
        mean = (int(rows[:, 2].sum()) + num_bytes_missing) / max(num_images, 1)
        known = self._mean_bytes[task.decodes]
        self._mean_bytes[task.decodes] += (min(mean, 2 * known) - known) / 8
        is_wanted = task.request.add_rows(task.positions, block, rows, reasons)
        if is_wanted and len(rows) < len(task.positions):
            num_bytes = max(task.num_bytes, num_bytes_missing)
            rest = replace(
                task, positions=task.positions[len(rows) :], num_bytes=num_bytes
            )
            with self._lock:
                self._queue.appendleft(rest)
                self._dispatch()

    def _fail(self, error: BaseException) -> None:
        """Fails all requests."""
        with self._lock:
            self._error = error
            for request in self._requests:
                request.fail(error)

    def _receive(self, worker: WorkerProcess) -> bool:
        """Receives one message; False if the process has died."""
        try:
            length = worker.socket.recv_into(self._buffer)
        except OSError:
            length = 0
        if not length:
            with self._lock:
                self._remove(worker)
                self._dispatch()
            return False
        try:
            reply = pickle.loads(memoryview(self._buffer)[:length])
        except Exception as error:
            reply = RuntimeError(f"A worker's reply cannot be read: {error}")
        if isinstance(reply, int):
            worker.pid = reply
            self._have_started = True
        elif isinstance(reply, str):
            self._start_error = f" ({reply})"
        else:
            with self._lock:
                task, block = worker.tasks.popleft()
            self._complete(task, block, reply)
            self._dispatch()
        return True

    def _remove(self, worker: WorkerProcess) -> None:
        """Queues the tasks of a dead process again; the caller holds the lock."""
        self.workers.remove(worker)
        worker.socket.close()
        # Threads run next, and must not get a task that has killed two processes.
        max_deaths = _MAX_DEATHS if self.workers else 1
        for task, block in worker.tasks:
            had_started = bool(self.arena.array[block.end - 1])
            self.arena.free(block)
            again = replace(task, num_deaths=task.num_deaths + had_started)
            if again.num_deaths <= max_deaths:
                self._queue.appendleft(again)
            else:
                task.request.fail(self._fatal_error(again))
        self._warn_of_death(worker)

    def _fatal_error(self, task: ReadTask) -> LocalError:
        """The error that ends the run: skipping the images would change the result."""
        indices = task.request.indices[task.positions].tolist()
        names = [f"  {on_one_line(self._source.name(index))}" for index in indices]
        return LocalError(
            f"{task.num_deaths} worker processes died while reading the same images, "
            "for lack of memory or because a file crashes its decoder: try fewer "
            "--workers, or remove the damaged file among\n" + "\n".join(names)
        )

    def _warn_of_death(self, worker: WorkerProcess) -> None:
        num_left = len(self.workers)
        if worker.pid is not None:
            others = f"the other {num_left} do its work"
            if not num_left:
                others = "it was the last: threads do its work"
            why = "perhaps for lack of memory"
            self._warn(f"Worker process {worker.pid} died, {why}; {others}.")
        elif not num_left:
            error = self._start_error
            self._warn(f"Worker processes could not start{error}; using threads.")
