"""Folders of images and tables of their labels, as people have them."""

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from t2t.data.sources import Source


def images(folder: Path, names: Iterable[str]) -> None:
    """Files that are listed, and never decoded."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())


def table(path: Path, *rows: Sequence[Any], delimiter: str = ",") -> Path:
    """A CSV file of these rows, the first of which is the header."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        csv.writer(file, delimiter=delimiter).writerows(rows)
    return path


def labels_by_name(source: Source) -> dict[str, str]:
    """The classes of each image, by the name of its file."""
    return {
        Path(source.name(index)).name: ";".join(
            source.classes[number] for number in source.classes_of(index)
        )
        for index in range(len(source))
    }


def numbered(num: int, *classes: str) -> dict[str, str]:
    """1.jpg, 2.jpg, … with the classes in turn."""
    return {f"{n}.jpg": classes[n % len(classes)] for n in range(1, num + 1)}
