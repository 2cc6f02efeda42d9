"""How long a thread keeps Python's lock while others wait for it."""

import sys

SHORT_SECONDS = 0.0005
USUAL_SECONDS = sys.getswitchinterval()
"""Ten times as long, by default."""


def switch_often() -> None:
    """While a run starts, threads that import or compile hold it up for less time.

    PyTorch gives the lock away in each operation, and then waits for it.
    """
    sys.setswitchinterval(SHORT_SECONDS)


def switch_as_usual() -> None:
    """From the first step on, threads that decode lose no time by switching."""
    sys.setswitchinterval(USUAL_SECONDS)
