"""The screen that is spoken to, or the file or pipe in its place."""

import os

from rich.console import Console
from rich.table import Table
from rich.text import Text

UNLIMITED = 1000
"""Columns of what is no terminal."""


class RunConsole(Console):
    """A console that a run outlives: it goes mute where it cannot be written to."""

    is_unheard = False
    """Whether who read along has gone, as `tee` does at Ctrl-C."""

    def show(self, text: Text) -> None:
        """Prints, in a file a line each."""
        try:
            self.print(text, soft_wrap=not self.is_terminal)
        except BrokenPipeError:  # as a rich before 13.8 raises it
            self.on_broken_pipe()
        except OSError:
            self.quiet = True

    def on_broken_pipe(self) -> None:
        """Goes mute, where rich would end the program in the middle of a step."""
        self.quiet = self.is_unheard = True
        # What is still to be sent could not be either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())


def width_of(table: Table) -> int:
    """The columns of a terminal that a table needs."""
    # A height too, since the width of a dumb terminal is else taken to be 80.
    return Console(width=UNLIMITED, height=1).measure(table).maximum
