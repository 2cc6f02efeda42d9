"""What one process keeps open or in memory and no other process can use."""

import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")


def _one(value: Any) -> int:
    return 1


class ProcessCache(Generic[Value]):
    """The last values used, up to a total size, for all threads of a process.

    A copy in another process, pickled or forked, starts empty.
    """

    def __init__(self, limit: int, size: Callable[[Value], int] = _one) -> None:
        self.limit, self.size = limit, size
        self._clear()

    def _clear(self) -> None:
        self.values: OrderedDict[int, Value] = OrderedDict()
        self._total = 0
        self._lock = threading.Lock()
        self._process = os.getpid()

    def __getstate__(self) -> dict[str, Any]:
        return {"limit": self.limit, "size": self.size}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def has(self, key: int) -> bool:
        """Whether a value is kept, in this process."""
        return self._process == os.getpid() and key in self.values

    def get(self, key: int, make: Callable[[int], Value]) -> Value:
        """The value of a key, made if it is not kept, while other threads wait."""
        if self._process != os.getpid():  # after a fork the lock may be held for ever
            self._clear()
        with self._lock:
            if key not in self.values:
                value = self.values[key] = make(key)
                self._total += self.size(value)
                # A thread that still uses a dropped value keeps it alive until then.
                while self._total > self.limit and len(self.values) > 1:
                    _, oldest = self.values.popitem(last=False)
                    self._total -= self.size(oldest)
            self.values.move_to_end(key)
            return self.values[key]
