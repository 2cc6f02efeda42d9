"""Data frames of paths and labels."""

import os
from typing import Any

from t2t.data.label_config import NO_LABEL_CONFIG
from t2t.data.sources.base import Source
from t2t.data.sources.label_columns import find_columns
from t2t.data.sources.label_files import openers_of_table
from t2t.data.sources.label_values import read_flags
from t2t.errors import UserError

_NUM_LOOKED_AT = 100
"""Rows by which columns are identified."""


def is_frame(data: object) -> bool:
    """Whether this is a frame of pandas or polars; imports neither."""
    library = type(data).__module__.split(".")[0]
    return library in ("pandas", "polars") and type(data).__name__ == "DataFrame"


def frame_sources(frame: Any, title: str) -> dict[str, Source]:
    """The images of each split, or of the whole as "all".

    Columns are found as in a CSV: path, label and perhaps split, by their names. Paths
    are relative to the current folder.
    """
    if not len(frame):
        raise UserError(f"The {title} has no rows: give a row for every image.")
    where = f"the {title}"
    names = [str(name) for name in frame.columns]
    cells = [frame[name].to_list() for name in frame.columns]
    first = [
        list(row) for row in zip(*(c[:_NUM_LOOKED_AT] for c in cells), strict=True)
    ]
    try:
        columns = find_columns(names, first, NO_LABEL_CONFIG, where, labels=False)
    except UserError as error:
        raise UserError(
            f"The {title} has the columns {', '.join(names)}: call them path, label "
            "and, if there is one, split."
        ) from error
    check_folder(cells[columns.path], title)
    labels = None
    if len(columns.labels) == 1:
        labels = cells[columns.labels[0]]
    elif columns.labels:
        flags = zip(*(cells[column] for column in columns.labels), strict=True)
        named = columns.label_names
        labels = read_flags([*flags], named, where).classes
    splits = None
    if columns.split is not None:
        splits = [*map(columns.get_split(where), cells[columns.split])]
    openers = openers_of_table(cells[columns.path], labels, splits, where=where)
    return {split: opener() for split, opener in openers.items()}


def check_folder(paths: list[Any], title: str) -> None:
    """Raises an error if the folder of the first image does not exist."""
    folder = os.path.dirname(str(paths[0])) or os.curdir
    if not os.path.isdir(folder):
        raise UserError(
            f"The {title} has the image {paths[0]}, and there is no folder {folder}: "
            "paths are relative to the current folder."
        )
