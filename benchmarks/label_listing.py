"""Seconds and memory of listing and splitting many images by a table of labels.

    python benchmarks/label_listing.py --images 1000000 --out records/input/labels.json

Empty files are made in a temporary folder, a thousand in each of its folders, with
tables that list them. Every case is a new process that opens the data as `t2t train`
does, and is repeated; the cases alternate. Memory is the peak of the process above what
it has after the imports (Linux).
"""

import argparse
import csv
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from t2t.atomic import write_atomically
from t2t.data.label_config import LabelConfig
from t2t.data.sources.open_splits import open_splits

IN_A_FOLDER = 1000
CLASSES = [f"class{number:04d}" for number in range(1000)]
CASES = {
    "class folders": {},
    "pattern": {"pattern": "{label}/*"},
    "csv": {"files": ("labels.csv",)},
    "csv with splits": {"files": ("splits.csv",)},
    "csv without suffixes": {"files": ("ids.csv",)},
    "several labels": {"files": ("several.csv",)},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        print(json.dumps(measure(options.folder, options.case)))
        return
    with tempfile.TemporaryDirectory() as folder:
        make_data(Path(folder), options.images)
        repeats = range(options.repeats)
        rows = [run(Path(folder), case) for _ in repeats for case in CASES]
    found = [summary(case, rows) for case in CASES]
    record = {
        "command": f"python benchmarks/label_listing.py --images {options.images}",
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, files in the cache",
        "python": platform.python_version(),
        "images": options.images,
        "repeats": options.repeats,
        "rows": found,
    }
    text = json.dumps(record, indent=1)
    if options.out is not None:
        write_atomically(options.out, f"{text}\n".encode())
    print(text)


def make_data(folder: Path, num_images: int) -> None:
    """Empty files and the tables that list them, in random order."""
    images = folder / "images"
    names = []
    for first in range(0, num_images, IN_A_FOLDER):
        label = CLASSES[first // IN_A_FOLDER % len(CLASSES)]
        inner = images / label
        inner.mkdir(parents=True, exist_ok=True)
        for number in range(first, min(first + IN_A_FOLDER, num_images)):
            name = f"{label}/photograph_{number:08d}.jpg"
            os.close(os.open(images / name, os.O_CREAT | os.O_WRONLY))
            names.append(name)
    draw = random.Random(0)
    draw.shuffle(names)
    labels = [name.partition("/")[0] for name in names]
    tables: dict[str, list[tuple[str, ...]]] = {
        "labels.csv": list(zip(names, labels, strict=True)),
        "splits.csv": [
            (*row, "val" if draw.random() < 0.1 else "train")
            for row in zip(names, labels, strict=True)
        ],
        "ids.csv": [
            (name.removesuffix(".jpg"), label)
            for name, label in zip(names, labels, strict=True)
        ],
        "several.csv": [
            (name, ";".join((label, *draw.sample(CLASSES[:80], draw.randint(0, 4)))))
            for name, label in zip(names, labels, strict=True)
        ],
    }
    for table, rows in tables.items():
        with (folder / table).open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(("path", "label", "split")[: len(rows[0])])
            writer.writerows(rows)


def run(folder: Path, case: str) -> dict[str, Any]:
    """One case in a process of its own."""
    words = [sys.executable, __file__, "--case", case, "--folder", str(folder)]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    row: dict[str, Any] = json.loads(done.stdout)
    print(row, file=sys.stderr)
    return row


def measure(folder: Path, case: str) -> dict[str, Any]:
    """Seconds of opening the data, and the memory that it takes at most."""
    settings = dict(CASES[case])
    if "files" in settings:
        settings["files"] = tuple(str(folder / file) for file in settings["files"])
    config = LabelConfig(**settings)  # type: ignore[arg-type]
    Path("/proc/self/clear_refs").write_text("5")  # forgets the peak of the imports
    before = peak_mib()
    started, computed = time.perf_counter(), time.process_time()
    splits = open_splits(folder / "images", label_config=config)
    return {
        "case": case,
        "seconds": time.perf_counter() - started,
        "cpu_seconds": time.process_time() - computed,
        "peak_mib": peak_mib() - before,
        "train": len(splits.train),
        "val": len(splits.val),
    }


def peak_mib() -> float:
    """The most memory of this process since the peak was forgotten."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def summary(case: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The medians of a case."""
    own = [row for row in rows if row["case"] == case]
    return {
        "case": case,
        **{
            key: round(median(row[key] for row in own), 1)
            for key in ("seconds", "cpu_seconds", "peak_mib")
        },
        "train": own[0]["train"],
        "val": own[0]["val"],
    }


if __name__ == "__main__":
    main()
