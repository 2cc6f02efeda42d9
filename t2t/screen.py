"""What the command line prints: for terminals, for pipes and for programs."""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from t2t.errors import UserError, suggest
from t2t.models.zoo import ZOO, Entry
from t2t.torchrun import is_main
from t2t.training.logging.console import UNLIMITED, width_of

ROOM_FOR_WORDS = 20
"""Columns that a sentence in a table needs, to be broken into lines."""


def print_page(page: Callable[[int], RenderableType]) -> None:
    """Prints a page made for the width there is: that of the terminal, or any."""
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
    """Prints a value as JSON, numbers and names as they are."""
    # It has no word for a number that is not finite.
    plain = json.loads(json.dumps(value), parse_constant=lambda word: None)
    escapes = not (sys.stdout.encoding or "utf-8").lower().startswith("utf")
    sys.stdout.write(json.dumps(plain, indent=2, ensure_ascii=escapes) + "\n")


def find_models(pattern: str) -> dict[str, Entry]:
    """The models whose name contains some text, or fits a pattern with wildcards."""
    wanted = pattern.lower().replace("-", "_")
    is_pattern = any(wildcard in wanted for wildcard in "*?[")
    found = {
        name: entry
        for name, entry in ZOO.items()
        if (fnmatchcase(name, wanted) if is_pattern else wanted in name)
    }
    if not found:
        raise UserError(
            f"No model matches {pattern!r}.{suggest(wanted, ZOO)} `t2t models` lists "
            "all of ours; every name of timm can be used too."
        )
    return found


def model_rows(found: dict[str, Entry]) -> list[dict[str, Any]]:
    """The models as plain rows, for programs."""
    return [
        {
            "name": name,
            "about": entry.about,
            "built_by": "t2t" if entry.config else "timm",
            "parameters": entry.parameters,
            "gmacs": entry.gmacs,
            "image_size": list(entry.image_size),
            "paper": vars(entry.paper) if entry.paper else None,
        }
        for name, entry in found.items()
    ]


def model_table(found: dict[str, Entry], width: int) -> RenderableType:
    """The models as a table; where there is no room, without what they are.

    Without the paper's figures too where that room is short: nothing is cut.
    """
    full = table_of(found, with_about=True)
    needed = width_of(full)
    if needed <= width:
        return full
    note = f"From {needed} columns on, this table also says what each model is."
    table = table_of(found, with_about=False)
    if width_of(table) > width:
        note = f"From {width_of(table)} columns on, this table has the paper's figures."
        table = table_of(found, with_about=False, with_paper=False)
    return Group(table, Text(), Text(note, style="dim"))


def table_of(
    found: dict[str, Entry], *, with_about: bool, with_paper: bool = True
) -> Table:
    """The models and their figures, ours beside the paper's."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("\nmodel", style="cyan", no_wrap=True)
    for heading in ("params\nM", "MACs\nG", "image\npx"):
        table.add_column(heading, justify="right", no_wrap=True)
    for heading in ("paper\nM", "paper\nG", "paper\ntop-1") if with_paper else ():
        table.add_column(heading, justify="right", style="dim", no_wrap=True)
    if with_about:
        table.add_column("\nwhat it is", no_wrap=True)
    for name, entry in found.items():
        table.add_row(
            name,
            f"{entry.parameters / 1e6:.1f}",
            f"{entry.gmacs:.3f}",
            size_text(entry.image_size),
            *(paper_cells(entry) if with_paper else ()),
            *([entry.about] if with_about else []),
        )
    return table


def paper_cells(entry: Entry) -> Sequence[str]:
    """The published figures of a model, blank where there are none."""
    if entry.paper is None:
        return "", "", ""
    figures: Iterable[float | None] = (
        entry.paper.params,
        entry.paper.macs,
        entry.paper.top1,
    )
    return ["" if figure is None else f"{figure:.1f}" for figure in figures]


def size_text(image_size: tuple[int, int]) -> str:
    """A square by its side, anything else by both."""
    height, width = image_size
    return str(height) if height == width else f"{height}×{width}"


def recipe_table(rows: Sequence[tuple[Any, str]], width: int) -> RenderableType:
    """The recipes as a table; where there is no room, without what they are.

    Of a very narrow one only the names are left: these are never cut.
    """
    numbers = recipes_of(rows, width, num_columns=4)
    needed = width_of(numbers) + ROOM_FOR_WORDS
    if needed <= width:
        return recipes_of(rows, width, num_columns=5)
    note = f"From {needed} columns on, this table also says what each recipe is."
    if width_of(numbers) > width:
        note = f"From {width_of(numbers)} columns on, this table has px, epochs, batch."
        numbers = recipes_of(rows, width, num_columns=1)
    return Group(numbers, Text(), Text(note, style="dim"))


def recipes_of(
    rows: Sequence[tuple[Any, str]], width: int, *, num_columns: int
) -> Table:
    """The first columns of: name, image size, epochs, batch, and what it is."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("recipe", style="cyan", overflow="fold", no_wrap=num_columns > 1)
    for heading in ("px", "epochs", "batch")[: num_columns - 1]:
        table.add_column(heading, justify="right", no_wrap=True)
    if num_columns > 4:
        table.add_column("what it is", no_wrap=width >= UNLIMITED)
    for recipe, about in rows:
        size = "×".join(map(str, dict.fromkeys(recipe.image_size)))
        numbers = (size, str(recipe.epochs), str(recipe.batch_size))
        table.add_row(*(recipe.name, *numbers, about)[:num_columns])
    return table


@contextmanager
def counting(what: str) -> Iterator[Callable[[int, int], None]]:
    """Shows how many of how many are done: a bar, or a line now and then."""
    console = Console(stderr=True)
    if console.is_terminal:
        # Of torchrun's processes one counts; the others' bars would lie over its own.
        with Progress(
            console=console, transient=True, disable=not is_main()
        ) as progress:
            task = progress.add_task(what, total=None)
            yield lambda done, total: progress.update(task, completed=done, total=total)
        return
    told = [0]

    def warn(done: int, total: int) -> None:
        if done * 10 // max(total, 1) > told[0]:
            told[0] = done * 10 // max(total, 1)
            console.print(
                f"{what}: {done:,} of {total:,}", highlight=False, soft_wrap=True
            )

    yield warn
