"""What a batch asks its workers for, cut into tasks, and what has come of it."""

import threading
from collections.abc import Callable
from concurrent.futures import CancelledError
from dataclasses import dataclass, replace

import numpy as np

from t2t.data.sources.base import Indices
from t2t.data.streaming.filling import NUM_COLUMNS, Filled, Wanted
from t2t.data.streaming.memory import Block, Memory

# A block is taken for this much more than images have needed lately.
_ROOM = 1.4
# Seconds after which who waits looks whether anybody still wants the batch.
_PATIENCE = 0.5


class Request:
    """Images that are wanted together, and a row for each as they arrive.

    Its blocks of memory stay as they are until it is released.
    """

    def __init__(self, indices: Indices, memory: Memory) -> None:
        self.indices = indices
        self.rows = np.zeros((len(indices), NUM_COLUMNS), dtype=np.int64)
        self.reasons: dict[int, str] = {}
        """Why images are damaged, by their places."""
        self.is_released = False
        self._memory = memory
        self._blocks: list[Block] = []
        self._num_left = 0
        self._error: BaseException | None = None
        self._changed = threading.Condition()

    @property
    def block_starts(self) -> Indices:
        """Where its blocks begin."""
        return np.array([block.start for block in self._blocks], dtype=np.int64)

    def expect(self, num_tasks: int) -> None:
        """So many tasks more are done before it is complete."""
        with self._changed:
            self._num_left += num_tasks

    def arrived(self, task: "Task", block: Block, filled: Filled) -> "Task | None":
        """Takes over what a worker wrote; returns what did not fit, to do again."""
        done = len(filled.rows)
        with self._changed:
            if self.is_released:
                self._memory.give_back(block)
                return None
            self._blocks.append(block)
            self.rows[task.places[:done]] = filled.rows
            for row, reason in filled.reasons.items():
                self.reasons[int(task.places[row])] = reason
            if done < len(task.places):
                return task.rest(done, filled.num_bytes_missing)
            self._num_left -= 1
            if not self._num_left:
                self._changed.notify_all()
        return None

    def failed(self, error: BaseException) -> None:
        """Ends the waiting with an error."""
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    def wait(self, is_over: Callable[[], bool]) -> None:
        """Until all that is expected has arrived, or all is over for who asked."""

        def is_settled() -> bool:
            return not self._num_left or self._error is not None

        with self._changed:
            while not self._changed.wait_for(is_settled, _PATIENCE):
                if is_over():
                    raise CancelledError
            if self._error is not None:
                raise self._error

    def release(self) -> None:
        """Gives back its memory, now or, where a worker still writes, after that."""
        with self._changed:
            self.is_released = True
            self._error = self._error or CancelledError()
            self._changed.notify_all()
            for block in self._blocks:
                self._memory.give_back(block)
            self._blocks.clear()


@dataclass(frozen=True, eq=False)
class Task:
    """Some images of a request, for one worker."""

    request: Request
    places: Indices
    decodes: bool
    is_read: bool
    """Whether their files lie in memory already, as the request's rows say."""
    num_bytes: int
    num_deaths: int = 0
    """How many workers ended over it."""

    @property
    def wanted(self) -> Wanted:
        wanted = np.zeros((len(self.places), 3), dtype=np.int64)
        wanted[:, 0] = self.request.indices[self.places]
        if self.is_read:
            wanted[:, 1:] = self.request.rows[self.places, 1:3]
        return wanted

    def rest(self, done: int, num_bytes: int) -> "Task":
        num_bytes = max(self.num_bytes, num_bytes)
        return replace(self, places=self.places[done:], num_bytes=num_bytes)

    def after_a_death(self) -> "Task":
        return replace(self, num_deaths=self.num_deaths + 1)


class Cutter:
    """Cuts requests into tasks, and learns how much memory images need."""

    def __init__(self, most_read: int, most_decoded: int) -> None:
        self._most = {False: most_read, True: most_decoded}
        self._mean_bytes = {False: 2.0**17, True: 2.0**19}

    def tasks(
        self, request: Request, places: Indices, *, decodes: bool, is_read: bool = False
    ) -> list[Task]:
        """As few as may be, of about equal size; the request expects them from now."""
        num = -(-len(places) // self._most[decodes])
        room = _ROOM * self._mean_bytes[decodes]
        tasks = [
            Task(request, some, decodes, is_read, int(room * len(some)))
            for some in (np.array_split(places, num) if num else ())
        ]
        request.expect(len(tasks))
        return tasks

    def learn(self, task: Task, filled: Filled) -> None:
        """Follows what images need, of which a single huge one says little."""
        missing = filled.num_bytes_missing
        num = len(filled.rows) + (missing > 0)
        mean = (int(filled.rows[:, 2].sum()) + missing) / max(num, 1)
        known = self._mean_bytes[task.decodes]
        self._mean_bytes[task.decodes] += (min(mean, 2 * known) - known) / 8
