"""Benchmark rows in files and tables."""

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
from t2t.formatting import counted
from t2t.lab.bench.profiling import Profile
from t2t.training.logging.console import width_of

Row = dict[str, Any]

IDENTITY = (
    "model", "mode", "image_size", "batch", "precision", "source", "gpu",
    "recipe", "depth", "launch", "workers", "resident", "path",
)  # fmt: skip
"""Rows that agree in these keys measure the same thing."""

DEFAULTS = {"path": "single"}
"""Values of fields that a row leaves out."""


def identity(row: Row) -> tuple[Any, ...]:
    """The key of a row."""
    return tuple(row.get(key, DEFAULTS.get(key)) for key in IDENTITY)


def read_rows(path: Path) -> list[Row]:
    """The rows of a file; none if it does not exist."""
    try:
        rows = json.loads(path.read_text())
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(
            f"--out {path} exists but cannot be read ({reason}); name another file."
        ) from error
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise UserError(
            f"--out {path} exists but holds no list of rows; name another file."
        )
    return rows


def merge_row(path: Path, row: Row) -> None:
    """Adds a row to a file; replaces an older row of the same thing."""
    rows = read_rows(path)
    older = [n for n, old in enumerate(rows) if identity(old) == identity(row)]
    if older:
        rows[older[0]] = row
    else:
        rows.append(row)
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    try:
        write_atomically(path, f"[\n{lines}\n]\n".encode())
    except OSError as error:
        raise UserError(f"--out {path} cannot be written: {error}.") from error


def pixels(row: Row) -> str:
    """The image side, or both sides if they differ."""
    size = row["image_size"]
    return str(size) if isinstance(size, int) else "×".join(map(str, size))


def source(row: Row) -> str:
    """The source of the images."""
    words = [row["source"]]
    if row.get("resident"):
        words.append("resident")
    if row.get("workers"):
        words.append(counted(row["workers"], "worker"))
    return ", ".join(words)


def row_line(row: Row) -> str:
    """A row as one line of text."""
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
        words += f", {row['synthetic_share']:.1%} of the speed on synthetic images"
    if row.get("busy_share") is not None:
        words += f", GPU busy {row['busy_share']:.1%}"
    return what + words


HEADINGS = (
    "model", "mode", "px", "batch", "precision", "source", "images/s", "±", "ms",
    "GiB", "of matrix rate", "compile s",
)  # fmt: skip
NUM_TEXTS = 6
"""Columns without measured numbers; the next one is images/s."""
SIZES = ("px", "batch")


def cells(row: Row) -> list[str]:
    """The cells of a row; a failed one has its reason instead of a rate."""
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


OMITTABLE = (
    "compile s",
    "of matrix rate",
    "±",
    "ms",
    "source",
    "precision",
    "mode",
)
"""Columns that a narrow terminal omits, in this order."""


def row_table(rows: Sequence[Row], width: int) -> RenderableType:
    """The rows as a table; a narrow terminal gets fewer columns, none is cut."""
    lines = [cells(row) for row in rows]
    # The reason of a failure can wrap, so it needs no width.
    rigid = [line if line[NUM_TEXTS + 1] else line[:NUM_TEXTS] for line in lines]
    omitted: list[str] = []
    for heading in OMITTABLE:
        table = table_of(rigid, omitted)
        if width_of(table) <= width:
            break
        omitted.append(heading)
    table = table_of(lines, omitted)
    if not omitted:
        return table
    words = f"A wider terminal, or --json, also shows: {', '.join(omitted)}."
    return Group(table, Text(), Text(words, style="dim"))


def table_of(lines: Sequence[Sequence[str]], omitted: Sequence[str]) -> Table:
    """A table without the omitted columns."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    shown = [n for n, heading in enumerate(HEADINGS) if heading not in omitted]
    for column in shown:
        heading = HEADINGS[column]
        table.add_column(
            heading.replace(" ", "\n"),
            justify="right" if column >= NUM_TEXTS or heading in SIZES else "left",
            style="cyan" if column == 0 else "bold" if column == NUM_TEXTS else None,
            no_wrap=column != NUM_TEXTS,
            overflow="fold",
        )
    for line in lines:
        table.add_row(*(line[column] for column in shown if column < len(line)))
    return table


def markdown_table(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table, with hardware and torch version below."""
    ruler = [
        "---:" if column >= NUM_TEXTS or heading in SIZES else "---"
        for column, heading in enumerate(HEADINGS)
    ]
    lines = [list(HEADINGS), ruler, *(cells(row) for row in rows)]
    runtimes = dict.fromkeys(f"{row['gpu']}, torch {row['torch']}" for row in rows)
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{table}\n\n{'; '.join(runtimes)}."


def kernel_table(profile: Profile) -> RenderableType:
    """The kernels that take longest, as a table."""
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
    for heading in ("ms/step", "share", "calls"):
        table.add_column(heading, justify="right", no_wrap=True)
    for kernel in profile.kernels:
        table.add_row(
            kernel.name,
            f"{kernel.milliseconds:.3f}",
            f"{kernel.share:.1%}",
            f"{kernel.calls:g}",
        )
    return table
