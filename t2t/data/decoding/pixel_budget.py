"""Limits how many pixels are decoded at the same time, to limit memory."""

import os
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

PIXELS_IN_FLIGHT = 1 << 28
"""Pixels decoded at the same time: about a gigabyte, as Pillow stores them."""

# Smaller images are not counted, since counting costs time.
_MIN_COUNTED = 1 << 20
_UNCOUNTED = nullcontext()
_NUM_UNITS = 64


class PixelBudget:
    """Limits the pixels that threads and processes decode at the same time."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._num_free = total
        self._changed = threading.Condition()
        self._file = -1

    def share(self, descriptor: int) -> None:
        """Shares the budget with all processes that open this file; one thread each."""
        self._file = descriptor

    def reserve(self, num_pixels: int) -> AbstractContextManager[None]:
        """Waits until `num_pixels` are free; a larger image takes the whole budget."""
        if num_pixels < _MIN_COUNTED:
            return _UNCOUNTED
        num = min(num_pixels, self.total)
        return self._locked(num) if self._file >= 0 else self._counted(num)

    @contextmanager
    def _counted(self, num_pixels: int) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: self._num_free >= num_pixels)
            self._num_free -= num_pixels
        try:
            yield
        finally:
            with self._changed:
                self._num_free += num_pixels
                self._changed.notify_all()

    @contextmanager
    def _locked(self, num_pixels: int) -> Iterator[None]:
        """Locks bytes of the file; each byte is a 64th of the budget.

        The operating system releases them when a process ends, even if it is killed.
        """
        import fcntl  # exists wherever worker processes are used

        num = -(-num_pixels * _NUM_UNITS // self.total)
        starts = _NUM_UNITS - num + 1
        for start in range(starts):
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, num, start)
                break
            except (BlockingIOError, PermissionError):
                continue
        else:
            start = os.getpid() % starts
            fcntl.lockf(self._file, fcntl.LOCK_EX, num, start)
        try:
            yield
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN, num, start)


BUDGET = PixelBudget(PIXELS_IN_FLIGHT)
"""The budget of this process, or of all workers after `share`."""
