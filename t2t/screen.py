"""Output of the command line: pages, JSON and progress."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from rich.console import Console, RenderableType
from rich.progress import Progress

from t2t.log_level import prints_info
from t2t.torchrun import is_main
from t2t.training.logging.console import UNLIMITED


def print_page(page: Callable[[int], RenderableType]) -> None:
    """Prints a page for the terminal's width, or of unlimited width into a pipe."""
    console = Console(highlight=False)
    if console.is_terminal:
        console.print(page(console.width))
        return
    console = Console(highlight=False, color_system=None, width=UNLIMITED)
    with console.capture() as captured:
        console.print(page(UNLIMITED))
    for line in captured.get().splitlines():
        sys.stdout.write(line.rstrip() + "\n")


def print_json(value: Any) -> None:
    """Prints a value as JSON."""
    # JSON has no NaN and no infinity: they become null.
    plain = json.loads(json.dumps(value), parse_constant=lambda word: None)
    escapes = not (sys.stdout.encoding or "utf-8").lower().startswith("utf")
    sys.stdout.write(json.dumps(plain, indent=2, ensure_ascii=escapes) + "\n")


class Report(Protocol):
    """The result of a command."""

    def as_json(self) -> dict[str, Any]:
        """The numbers."""

    def render(self) -> RenderableType:
        """Tables and sentences."""


def print_report(report: Report, *, as_json: bool) -> None:
    """Prints a report as JSON or as a page."""
    if as_json:
        print_json(report.as_json())
    else:
        print_page(lambda width: report.render())


@contextmanager
def show_progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """Shows progress: a bar in a terminal, else ten lines."""
    console = Console(stderr=True, quiet=not prints_info())
    if console.is_terminal:
        # Only the main process draws a bar.
        with Progress(
            console=console, transient=True, disable=not is_main() or console.quiet
        ) as progress:
            task = progress.add_task(what, total=None)
            yield lambda done, total: progress.update(task, completed=done, total=total)
        return
    printed = [0]

    def update(done: int, total: int) -> None:
        if done * 10 // max(total, 1) > printed[0]:
            printed[0] = done * 10 // max(total, 1)
            console.print(
                f"{what}: {done:,} of {total:,}", highlight=False, soft_wrap=True
            )

    yield update
