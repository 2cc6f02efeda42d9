"""Requests to stop: Ctrl-C, a scheduler's SIGTERM, and SIGHUP of a closed terminal."""

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any


class Interruption:
    """Notes a request to stop (Ctrl-C, SIGTERM, SIGHUP); a second Ctrl-C stops at once.

    Before there is anything to keep, the first stops at once too.
    """

    def __init__(self) -> None:
        self.asked = False
        self.before: dict[int, Any] = {}
        self.warn: Callable[[str], None] | None = None

    def wait_for_steps(self, warn: Callable[[str], None]) -> None:
        """From now on a run can end between steps, with a checkpoint."""
        self.warn = warn

    def __enter__(self) -> "Interruption":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                # As `nohup` asks for.
                ignored = signal.getsignal(number) == signal.SIG_IGN
                if number == signal.SIGHUP and ignored:
                    continue
                self.before[number] = signal.signal(number, self.note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def note(self, number: int, frame: FrameType | None) -> None:
        """Remembers the first request and obeys the second."""
        if self.warn is None or (self.asked and number == signal.SIGINT):
            raise KeyboardInterrupt
        if not self.asked:
            self.asked = True
            self.warn(
                "Stopping after this step, with a checkpoint; another Ctrl-C stops at "
                "once."
            )
