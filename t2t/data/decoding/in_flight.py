"""A budget for the pixels that are decoded at the same time."""

import os
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

PIXELS_IN_FLIGHT = 1 << 28
"""Of images being decoded at once: about a gigabyte, as Pillow keeps them."""

# Images below this are not counted: counting all would cost more than it is worth.
_MIN_COUNTED = 1 << 20
_UNCOUNTED = nullcontext()
_NUM_UNITS = 64


class PixelBudget:
    """Lets threads, and processes that share a file, decode so many pixels at once."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._num_free = total
        self._changed = threading.Condition()
        self._file = -1

    def share(self, descriptor: int) -> None:
        """Counts together with all processes that share this file; one thread each."""
        self._file = descriptor

    def reserve(self, num_pixels: int) -> AbstractContextManager[None]:
        """Waits until there is room; one image larger than all waits for all."""
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
        """Locks bytes of the file, a 64th of the budget each.

        The system gives them back when a process ends, however it does.
        """
        import fcntl  # where there are worker processes, there is this

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
"""Of this process."""
