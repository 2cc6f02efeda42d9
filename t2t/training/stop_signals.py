"""Signals to stop: Ctrl-C, a scheduler's SIGTERM, and SIGHUP of a closed terminal."""

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any


class StopSignals:
    """Handles signals to stop: at once, or between steps after `defer`.

    A second Ctrl-C always stops at once.
    """

    def __init__(self) -> None:
        self.received = False
        self.handlers: dict[int, Any] = {}
        """The previous handlers."""
        self.warn: Callable[[str], None] | None = None

    def defer(self, warn: Callable[[str], None]) -> None:
        """From now on, a first signal only sets `received` and warns."""
        self.warn = warn

    def __enter__(self) -> "StopSignals":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                # `nohup` ignores SIGHUP.
                ignored = signal.getsignal(number) == signal.SIG_IGN
                if number == signal.SIGHUP and ignored:
                    continue
                self.handlers[number] = signal.signal(number, self.handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.handlers.items():
            signal.signal(number, handler)

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Records the first signal; a second Ctrl-C raises KeyboardInterrupt."""
        if self.warn is None or (self.received and number == signal.SIGINT):
            raise KeyboardInterrupt
        if not self.received:
            self.received = True
            self.warn(
                "Stopping after this step, with a checkpoint; another Ctrl-C stops at "
                "once."
            )
