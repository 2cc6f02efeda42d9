"""Rows in a file and on the screen."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from t2t.atomic import write_atomically
from t2t.errors import UserError
from t2t.lab.bench.profiling import Profile
from t2t.training.logging.clock import counted
from t2t.training.logging.console import width_of

Row = dict[str, Any]

IDENTITY = (
    "model", "mode", "image_size", "batch", "precision", "source", "gpu",
    "recipe", "depth", "launch", "workers", "resident",
)  # fmt: skip
"""What makes two rows measurements of the same thing."""


def identity(row: Row) -> tuple[Any, ...]:
    """What a row is of."""
    return tuple(row.get(key) for key in IDENTITY)


def read_rows(path: Path) -> list[Row]:
    """The rows of a file, none where there is no file."""
    try:
        rows = json.loads(path.read_text())
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(
            f"--out {path} is there but cannot be read ({reason}); name another file."
        ) from error
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise UserError(
            f"--out {path} is there but holds no list of rows; name another file."
        )
    return rows


def merge_row(path: Path, row: Row) -> None:
    """Writes a row into a file, in the place of an older one of the same thing."""
    rows = read_rows(path)
    places = [place for place, old in enumerate(rows) if identity(old) == identity(row)]
    if places:
        rows[places[0]] = row
    else:
        rows.append(row)
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    try:
        write_atomically(path, f"[\n{lines}\n]\n".encode())
    except OSError as error:
        raise UserError(f"--out {path} cannot be written: {error}.") from error


def pixels(row: Row) -> str:
    """An image's side, or both where they differ."""
    size = row["image_size"]
    return str(size) if isinstance(size, int) else "×".join(map(str, size))


def source(row: Row) -> str:
    """Where the images of a row come from, and how."""
    told = [row["source"]]
    if row.get("resident"):
        told.append("resident")
    if row.get("workers"):
        told.append(counted(row["workers"], "worker"))
    return ", ".join(told)


def in_words(row: Row) -> str:
    """A row as one line, for people who wait."""
    deep = f", {row['depth']} deep" if row.get("depth") else ""
    what = (
        f"{row['model']}{deep}, {row['mode']}, {pixels(row)} px, batch "
        f"{row['batch']}, {row['precision']}, {source(row)}: "
    )
    if row["images_per_second"] is None:
        return what + row["failed"]
    words = f"{row['images_per_second']:,.1f} images/s"
    if "phases" in row:
        parts = [
            f"{phase['images_per_second']:,.0f} for {phase['share']:.0%} of the steps"
            for phase in row["phases"]
        ]
        words += f" ({', '.join(parts)})"
    if "synthetic_share" in row:
        words += f", {row['synthetic_share']:.1%} of the step alone"
    if row.get("busy_share") is not None:
        words += f", GPU busy {row['busy_share']:.1%}"
    return what + words


HEADINGS = (
    "model", "mode", "px", "batch", "precision", "source", "images/s", "±", "ms",
    "GiB", "of matrix rate", "compile s",
)  # fmt: skip
NUM_WORDS = 6
"""Columns at the left that hold no measured number; the next is images/s."""
SIZES = ("px", "batch")


def cells(row: Row) -> list[str]:
    """A row as the columns show it; what failed says why in place of its rate."""
    deep = f" ({row['depth']} deep)" if row.get("depth") else ""
    words = [
        row["model"] + deep,
        row["mode"],
        pixels(row),
        str(row["batch"]),
        row["precision"],
        source(row) if row.get("recipe") is None else f"{source(row)}, trainer",
    ]
    if row["images_per_second"] is None:
        return [*words, row["failed"], "", "", "", "", ""]

    def number(key: str, form: str) -> str:
        return form.format(row[key]) if row.get(key) else ""

    rate = row["images_per_second"]
    return [
        *words,
        f"{rate:,.0f}" if rate >= 100 else f"{rate:.1f}",
        number("spread", "{:.1%}"),
        number("milliseconds", "{:.2f}"),
        number("peak_memory_gib", "{:.2f}"),
        number("matrix_share", "{:.1%}"),
        number("compile_seconds", "{:.0f}"),
    ]


SPARE = ("compile s", "of matrix rate", "±", "ms", "source", "precision", "mode")
"""What a narrow terminal goes without, first of all the first."""


def row_table(rows: Sequence[Row], width: int) -> RenderableType:
    """The rows for a terminal; a narrow one gets fewer columns, but none is cut."""
    told = [cells(row) for row in rows]
    # A reason of failure can be broken into lines, and so takes no room.
    rigid = [line if line[NUM_WORDS + 1] else line[:NUM_WORDS] for line in told]
    left_out: list[str] = []
    for heading in SPARE:
        table = table_of(rigid, left_out)
        if width_of(table) <= width:
            break
        left_out.append(heading)
    table = table_of(told, left_out)
    if not left_out:
        return table
    words = f"A wider terminal, or --json, also tells: {', '.join(left_out)}."
    return Group(table, Text(), Text(words, style="dim"))


def table_of(lines: Sequence[Sequence[str]], left_out: Sequence[str]) -> Table:
    """Cells below their headings, some columns left out."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    shown = [place for place, each in enumerate(HEADINGS) if each not in left_out]
    for place in shown:
        heading = HEADINGS[place]
        table.add_column(
            heading.replace(" ", "\n"),
            justify="right" if place >= NUM_WORDS or heading in SIZES else "left",
            style="cyan" if place == 0 else "bold" if place == NUM_WORDS else None,
            no_wrap=place != NUM_WORDS,
            overflow="fold",
        )
    for line in lines:
        table.add_row(*(line[place] for place in shown if place < len(line)))
    return table


def markdown(rows: Sequence[Row]) -> str:
    """The rows as a table to paste, with what they were measured on below."""
    ruler = [
        "---:" if place >= NUM_WORDS or heading in SIZES else "---"
        for place, heading in enumerate(HEADINGS)
    ]
    lines = [list(HEADINGS), ruler, *(cells(row) for row in rows)]
    runtimes = dict.fromkeys(f"{row['gpu']}, torch {row['torch']}" for row in rows)
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{table}\n\n{'; '.join(runtimes)}."


def kernel_table(profile: Profile) -> RenderableType:
    """The kernels that take longest."""
    busy = profile.busy_share
    note = "" if busy is None else f"The GPU was busy {busy:.1%} of the time."
    table = Table(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        caption=note,
        caption_justify="left",
    )
    table.add_column("kernel", no_wrap=True, overflow="ellipsis", max_width=80)
    for heading in ("ms a step", "share", "calls"):
        table.add_column(heading, justify="right", no_wrap=True)
    for kernel in profile.kernels:
        table.add_row(
            kernel.name,
            f"{kernel.milliseconds:.3f}",
            f"{kernel.share:.1%}",
            f"{kernel.calls:g}",
        )
    return table
