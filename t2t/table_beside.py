"""The table that a command writes beside another file: the same name, as .csv."""

from collections.abc import Sequence
from pathlib import Path

from t2t.errors import UserError

OF_REPORT = (
    *("finding", "split", "path", "label", "predicted", "confidence"),
    *("label_probability", "other_split", "other_path", "other_label", "distance"),
)
OF_FEATURES = ("path", "label", "class")


def table_beside(file: Path, columns: Sequence[str]) -> Path:
    """Where the table goes; an error if a table of other columns is there."""
    table = file.with_suffix(".csv")
    header = ",".join(columns).encode()
    if table.is_file():
        with table.open("rb") as opened:
            first = opened.read(len(header) + 2)
        if first and first.splitlines()[:1] != [header]:
            raise UserError(
                f"{file} comes with the table {table}, and another file of that name "
                "is there: name another file, or move that one."
            )
    return table
