"""Exits without a traceback on Ctrl-C while the command line is being imported.

This module is imported first, so it imports only the standard library.
"""

import os
import signal
import sys
from types import FrameType

INTERRUPTED = 130


def exit_now(number: int, frame: FrameType | None) -> None:
    """Exits at once; no work has started yet."""
    os._exit(INTERRUPTED)


def exit_quietly_on_sigint() -> None:
    """Makes Ctrl-C exit quietly, if this process runs the command line."""
    words = [*sys.orig_argv, "", ""]
    is_script = os.path.basename(words[1]) == "t2t"
    is_module = "-m" in words[:-2] and words[words.index("-m") + 1] == "t2t"
    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if (is_script or is_module) and is_default:
        signal.signal(signal.SIGINT, exit_now)


def restore_sigint() -> None:
    """Makes Ctrl-C raise KeyboardInterrupt again."""
    if signal.getsignal(signal.SIGINT) is exit_now:
        signal.signal(signal.SIGINT, signal.default_int_handler)
