"""Tables of models and recipes, which fit the width of a terminal."""

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from t2t.errors import UserError, suggest
from t2t.models.zoo import ZOO, Entry
from t2t.training.logging.console import UNLIMITED, width_of

MIN_TEXT_COLUMNS = 20
"""Columns that a wrapped sentence in a table needs."""


def find_models(pattern: str) -> dict[str, Entry]:
    """The models whose name contains a text or matches a pattern."""
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
            "ours; timm's names work too."
        )
    return found


def model_rows(found: dict[str, Entry]) -> list[dict[str, Any]]:
    """The models as JSON."""
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
    """The models as a table; a narrow terminal gets fewer columns, none is cut."""
    full = model_columns(found, with_about=True)
    needed = width_of(full)
    if needed <= width:
        return full
    note = f"With {needed} columns, the terminal shows what each model is."
    table = model_columns(found, with_about=False)
    if width_of(table) > width:
        note = (
            f"With {width_of(table)} columns, the terminal shows the paper's numbers."
        )
        table = model_columns(found, with_about=False, with_paper=False)
    return Group(table, Text(), Text(note, style="dim"))


def model_columns(
    found: dict[str, Entry], *, with_about: bool, with_paper: bool = True
) -> Table:
    """The models with our numbers and the paper's."""
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
    """The published numbers of a model, blank if unknown."""
    if entry.paper is None:
        return "", "", ""
    figures: Iterable[float | None] = (
        entry.paper.params,
        entry.paper.macs,
        entry.paper.top1,
    )
    return ["" if figure is None else f"{figure:.1f}" for figure in figures]


def size_text(image_size: tuple[int, int]) -> str:
    """An image size; one number for a square."""
    height, width = image_size
    return str(height) if height == width else f"{height}×{width}"


def named_table(recipes: Mapping[str, str]) -> Table:
    """The recipes of a file, with a sentence on each."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("recipe", style="cyan", overflow="fold")
    table.add_column("what it is")
    for name, about in recipes.items():
        table.add_row(Text(name), Text(about))
    return table


def recipe_table(rows: Sequence[tuple[Any, str]], width: int) -> RenderableType:
    """The recipes as a table; a narrow terminal gets fewer columns, none is cut."""
    numbers = recipe_columns(rows, width, num_columns=4)
    needed = width_of(numbers) + MIN_TEXT_COLUMNS
    if needed <= width:
        return recipe_columns(rows, width, num_columns=5)
    note = f"With {needed} columns, the terminal shows what each recipe is."
    if width_of(numbers) > width:
        note = (
            f"With {width_of(numbers)} columns, the terminal shows px, epochs, batch."
        )
        numbers = recipe_columns(rows, width, num_columns=1)
    return Group(numbers, Text(), Text(note, style="dim"))


def recipe_columns(
    rows: Sequence[tuple[Any, str]], width: int, *, num_columns: int
) -> Table:
    """The first columns of name, image size, epochs, batch and description."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("recipe", style="cyan", overflow="fold", no_wrap=num_columns > 1)
    for heading in ("px", "epochs", "batch")[: num_columns - 1]:
        table.add_column(heading, justify="right", no_wrap=True)
    if num_columns > 4:
        table.add_column("what it is", no_wrap=width >= UNLIMITED)
    for recipe, about in rows:
        numbers = (
            size_text(recipe.image_size),
            str(recipe.epochs),
            str(recipe.batch_size),
        )
        table.add_row(*(recipe.name, *numbers, about)[:num_columns])
    return table
