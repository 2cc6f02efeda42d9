"""Writes a subset of Imagewoof with one class cut to a tenth, as folders of JPEGs.

python make_subset.py path/to/imagewoof-160 woof
"""

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet

PER_CLASS = {"train": 400, "validation": 100}
CUT, NUM_LEFT = "Golden retriever", 40


def write_subset(source: Path, folder: Path) -> None:
    for split, per_class in PER_CLASS.items():
        counts: Counter[str] = Counter()
        for file in sorted(source.glob(f"{split}-*.parquet")):
            for name, row in rows(file):
                most = NUM_LEFT if (split, name) == ("train", CUT) else per_class
                if counts[name] < most:
                    counts[name] += 1
                    into = folder / split.removesuffix("idation") / name
                    into.mkdir(parents=True, exist_ok=True)
                    image = into / f"{counts[name]:03d}.jpg"
                    image.write_bytes(row["image"]["bytes"])
        print(split, dict(sorted(counts.items())))


def rows(file: Path) -> list[tuple[str, dict[str, Any]]]:
    table = parquet.read_table(file)
    info = json.loads(table.schema.metadata[b"huggingface"])
    names = info["info"]["features"]["label"]["names"]
    return [(names[row["label"]], row) for row in table.to_pylist()]


if __name__ == "__main__":
    write_subset(Path(sys.argv[1]), Path(sys.argv[2]))
