"""Worker processes as the pool sees them: their tasks, and the thread for replies."""

import selectors
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from t2t.data.sources.base import Indices
from t2t.data.streaming.image_reader import ImagesToRead
from t2t.data.streaming.shared_memory import Block, Request


@dataclass(frozen=True, eq=False)
class ReadTask:
    """Some images of a request, for one worker."""

    request: Request
    positions: Indices
    decodes: bool
    is_read: bool
    """Whether the files are in the arena already, at the offsets in the rows."""
    num_bytes: int
    num_deaths: int = 0
    """How many processes died while running it."""

    @property
    def wanted(self) -> ImagesToRead:
        wanted = np.zeros((len(self.positions), 3), dtype=np.int64)
        wanted[:, 0] = self.request.indices[self.positions]
        if self.is_read:
            wanted[:, 1:] = self.request.rows[self.positions, 1:3]
        return wanted


@dataclass(eq=False)
class WorkerProcess:
    """A worker process, as the pool sees it."""

    socket: socket.socket
    tasks: deque[tuple[ReadTask, Block]] = field(default_factory=deque)
    pid: int | None = None


@contextmanager
def listening(
    workers: Sequence[WorkerProcess],
    receive: Callable[[WorkerProcess], bool],
    fail: Callable[[BaseException], None],
) -> Iterator[None]:
    """Calls `receive` for the processes' replies in a thread, inside this context.

    It returns False for a process that has died; `fail` gets any error.
    """
    ours, theirs = socket.socketpair()
    listener = threading.Thread(
        target=_listen,
        args=(theirs, workers, receive, fail),
        name="t2t-listen",
        daemon=True,
    )
    with ours, theirs:
        listener.start()
        try:
            yield
        finally:
            ours.close()
            listener.join()


def _listen(
    stop: socket.socket,
    workers: Sequence[WorkerProcess],
    receive: Callable[[WorkerProcess], bool],
    fail: Callable[[BaseException], None],
) -> None:
    """Receives replies until `stop` is closed."""
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(stop, selectors.EVENT_READ)
            for worker in workers:
                selector.register(worker.socket, selectors.EVENT_READ, worker)
            while True:
                for key, _ in selector.select():
                    if key.data is None:
                        return
                    if not receive(key.data):
                        selector.unregister(key.fileobj)
    except BaseException as error:
        fail(error)
