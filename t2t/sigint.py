"""Ctrl-C while the command line is still being imported: it ends without a traceback.

Imported before anything else of the package, so it imports next to nothing itself.
"""

import os
import signal
import sys
from types import FrameType

INTERRUPTED = 130


def exit_now(number: int, frame: FrameType | None) -> None:
    """Ends the process at once: nothing has begun that could be left half done."""
    os._exit(INTERRUPTED)


def exit_quietly_on_sigint() -> None:
    """Ends quietly from now on, in a process that is there for the command line."""
    words = [*sys.orig_argv, "", ""]
    is_script = os.path.basename(words[1]) == "t2t"
    is_module = "-m" in words[:-2] and words[words.index("-m") + 1] == "t2t"
    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if (is_script or is_module) and is_default:
        signal.signal(signal.SIGINT, exit_now)


def restore_sigint() -> None:
    """Lets Ctrl-C raise KeyboardInterrupt again."""
    if signal.getsignal(signal.SIGINT) is exit_now:
        signal.signal(signal.SIGINT, signal.default_int_handler)
