"""The console that a run prints to: a terminal, a file or a pipe."""

import os

from rich.console import Console
from rich.table import Table
from rich.text import Text

UNLIMITED = 1000
"""Columns of a file or pipe."""


class RunConsole(Console):
    """A console that stops printing if it cannot be written to; training continues."""

    reader_is_gone = False
    """Whether the reader of the pipe is gone, as `tee` is after Ctrl-C."""

    def show(self, text: Text) -> None:
        """Prints a line; it is wrapped only on a terminal."""
        try:
            self.print(text, soft_wrap=not self.is_terminal)
        except BrokenPipeError:  # raised by rich before 13.8
            self.on_broken_pipe()
        except OSError:
            self.quiet = True

    def on_broken_pipe(self) -> None:
        """Stops printing; rich would exit in the middle of a step."""
        self.quiet = self.reader_is_gone = True
        # Buffered output could not be written either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())


def width_of(table: Table) -> int:
    """The columns that a table needs."""
    # With a height, since rich otherwise assumes 80 columns on a dumb terminal.
    return Console(width=UNLIMITED, height=1).measure(table).maximum
