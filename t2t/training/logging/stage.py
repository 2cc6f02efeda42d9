"""Says what a run is doing when that takes more than two seconds."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.status import Status

ANNOUNCE_AFTER = 2.0
REPEAT_EVERY = 10.0
"""Seconds between two lines where there is no terminal."""
REFRESH_EVERY = 0.2
Progress = Callable[[], str]


@contextmanager
def stage(
    console: Console, words: str, progress: Progress | None = None
) -> Iterator[None]:
    """Prints the words and the seconds so far, once the block has taken two seconds.

    On a terminal one line is updated; a file or a pipe gets a line every ten seconds.
    A last line gives the whole time. `progress` adds how much is done.
    """
    started = time.monotonic()
    ended = threading.Event()

    def line() -> str:
        done = f" {progress()}" if progress is not None else ""
        return f"{words}{done} ... {time.monotonic() - started:.0f} s"

    def announce() -> None:
        if ended.wait(ANNOUNCE_AFTER):
            return
        if not console.is_terminal:
            print_line(console, line())
            while not ended.wait(REPEAT_EVERY):
                print_line(console, line())
            return
        with Status(line(), console=console) as status:
            while not ended.wait(REFRESH_EVERY):
                status.update(line())

    thread = threading.Thread(target=announce, name="t2t-stage", daemon=True)
    if not console.quiet:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        if thread.ident is not None:
            thread.join()
    took = time.monotonic() - started
    if took >= ANNOUNCE_AFTER:
        print_line(console, f"{words}: {took:.1f} s")


def print_line(console: Console, line: str) -> None:
    """Prints a line as it is; a console that is gone stops no run."""
    try:
        console.print(
            line, markup=False, highlight=False, soft_wrap=not console.is_terminal
        )
    except OSError:
        console.quiet = True
