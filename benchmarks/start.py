"""Times the start of a run on a GPU, from the command to the first step.

    CIFAR10=path/to/cifar10 JPEGS=path/to/photos python benchmarks/start.py --out $OUT

CIFAR10 holds parquet files, JPEGS class folders with an image each. Every part starts
with empty compiler caches, except the warm one, and adds a line to OUT/start.jsonl and
its output to OUT/start.log. Parts that do not fit into `--minutes` are left out;
`--only` names those to run. The first part also writes OUT/timeline.txt: what the main
thread does, by its stack every few milliseconds.
"""

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
WORK = Path(os.environ.get("RUNS", "/tmp/t2t-start"))
SAMPLE_EVERY = 0.01
SHORTEST = 0.04
"""Seconds of what is listed in a timeline."""
NUM_FILES = 100_000
"""Of the folder that stands for ImageNet's: hard links of the JPEGS."""
Job = tuple[str, float, Callable[["Measurement"], dict[str, Any]]]


class Measurement:
    """Runs commands, each with the caches of a name."""

    def __init__(self, out: Path) -> None:
        self.out = out

    def run(
        self, name: str, words: list[str], caches: str, program: tuple[str, ...] = ()
    ) -> dict[str, Any]:
        """A command's exit status and time."""
        folder = WORK / "caches" / caches
        own = {"TRITON_CACHE_DIR": "triton", "TORCHINDUCTOR_CACHE_DIR": "inductor"}
        own["CUDA_CACHE_PATH"] = "cuda"
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "PYTHONPATH": path}
        environment |= {key: str(folder / value) for key, value in own.items()}
        started = time.monotonic()
        with (self.out / "start.log").open("a") as log:
            log.write(f"\n=== {name}\n")
            log.flush()
            done = subprocess.run(
                [sys.executable, *(program or ("-m", "t2t")), *words],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=WORK,
            )
        seconds = round(time.monotonic() - started, 2)
        return {"exit_status": done.returncode, "process_seconds": seconds}

    def train(
        self, name: str, words: list[str], caches: str, program: tuple[str, ...] = ()
    ) -> dict[str, Any]:
        """A training's row, as in records/speed/start-h200.json."""
        folder = Path("runs") / name
        words = ["train", *words, "--folder", str(folder), "--fresh"]
        is_warm = (WORK / "caches" / caches).exists()
        found = self.run(name, words, caches, program)
        result = read(WORK / folder / "result.json")
        environment = read(WORK / folder / "environment.json")
        paths = {os.environ.get("CIFAR10"): "path/to/cifar10"}
        shown = [paths.get(each, each) for each in words]
        times = ("first_step_seconds", "total_seconds", "top1", "longest_pause_seconds")
        return {
            "command": " ".join(["t2t", *shown[:-1]]),
            "caches": "warm" if is_warm else "cold",
            **{key: result.get(key) for key in times},
            "compile": environment.get("compile"),
            "compiled_from_step": result.get("compiled_from_step"),
            "torch": environment.get("torch"),
            "gpu": str(environment.get("device")).removeprefix("cuda "),
            "train_minutes": result.get("train_minutes"),
            "images_per_second": result.get("images_per_second"),
            **found,
        }


def read(file: Path) -> dict[str, Any]:
    """A JSON file's content; empty if it was not written."""
    return json.loads(file.read_text()) if file.exists() else {}


def timeline(run: Measurement) -> dict[str, Any]:
    """One epoch of the sprint, and what it does when."""
    words = ["cifar10.sprint", "--data", os.environ["CIFAR10"], "--epochs", "1"]
    program = (str(Path(__file__).resolve()), "--sample", str(run.out / "timeline.txt"))
    return run.train("timeline", words, "timeline", (*program, "--"))


def sprint(name: str, seed: int, caches: str) -> Callable[[Measurement], Any]:
    """The sprint with a seed."""

    def measure(run: Measurement) -> dict[str, Any]:
        words = ["cifar10.sprint", "--data", os.environ["CIFAR10"]]
        return run.train(name, [*words, "--seed", str(seed)], caches)

    return measure


def standard(run: Measurement) -> dict[str, Any]:
    """A run with evaluations and checkpoints, for its longest pause."""
    words = ["cifar10.t2t_vit_7", "--data", os.environ["CIFAR10"], "--epochs", "32"]
    return run.train("standard", [*words, "--set", "evaluate_every=8"], "standard")


def imagenet(run: Measurement) -> dict[str, Any]:
    """An epoch of T2T-ViT-14 on full-size JPEGs: 195 steps."""
    photos = WORK / "photos"
    started = time.monotonic()
    num_files = link_photos(Path(os.environ["JPEGS"]), photos)
    linked = round(time.monotonic() - started, 2)
    words = ["imagenet.t2t_vit_14", "--data", str(photos), "--epochs", "1"]
    found = run.train("imagenet", words, "imagenet")
    return {**found, "num_files": num_files, "linking_seconds": linked}


def link_photos(source: Path, target: Path) -> int:
    """Links the files of class folders often enough into train/ and once into val/."""
    files = sorted(path for path in source.glob("*/*") if path.is_file())
    times = {"train": NUM_FILES // len(files), "val": 1}
    count = 0
    for split, number in times.items():
        for path in files:
            folder = target / split / path.parent.name
            folder.mkdir(parents=True, exist_ok=True)
            # A link needs the same file system, so the first one is a copy.
            first = folder / f"0{path.suffix}"
            if not first.exists():
                first.write_bytes(path.read_bytes())
            for copy in range(1, number):
                link = folder / f"{copy}{path.suffix}"
                if not link.exists():
                    os.link(first, link)
            count += number
    return count


def bench(name: str, options: str) -> Callable[[Measurement], Any]:
    """Rows of `t2t bench`."""

    def measure(run: Measurement) -> dict[str, Any]:
        rows = WORK / f"{name}.json"
        rows.unlink(missing_ok=True)
        words = ["bench", *options.split(), "--out", str(rows)]
        found = run.run(name, words, name)
        measured = json.loads(rows.read_text()) if rows.exists() else None
        return {"command": f"t2t bench {options}", "rows": measured, **found}

    return measure


JOBS: list[Job] = [
    ("timeline", 0.5, timeline),
    ("cold-0", 1.4, sprint("cold-0", 0, "cold-0")),
    ("imagenet", 1.2, imagenet),
    (
        "bench-sprint-model",
        1.0,
        bench(
            "bench-sprint-model",
            "--recipe cifar10.t2t_vit_7 --batch-size 1024 --launch eager_graph",
        ),
    ),
    (
        "bench-14",
        0.6,
        bench("bench-14", "t2t_vit_14 --batch-size 256 --launch eager_graph"),
    ),
    ("cold-2", 1.4, sprint("cold-2", 2, "cold-2")),
    ("warm-2", 1.4, sprint("warm-2", 2, "cold-2")),
    ("cold-1", 1.4, sprint("cold-1", 1, "cold-1")),
    ("standard", 1.2, standard),
]
"""Name, minutes at most, and function."""


def sample(file: Path, words: list[str]) -> int:
    """Runs a command in this process, and writes what its main thread does when."""
    from t2t.process_age import process_age

    before = process_age()
    started = time.monotonic()
    main_thread = threading.get_ident()
    stacks: list[tuple[float, tuple[str, ...]]] = []
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(SAMPLE_EVERY):
            frame = sys._current_frames().get(main_thread)
            seconds = before + time.monotonic() - started
            stacks.append((seconds, tuple(described(frame))[::-1]))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    from t2t.cli import main

    try:
        return main(words)
    finally:
        is_over.set()
        watcher.join()
        with file.open("w") as out:
            out.writelines(f"{line}\n" for line in intervals(stacks))


def described(frame: Any) -> Iterator[str]:
    """Our functions on a stack, and the innermost other one, from the inside."""
    is_innermost = True
    while frame is not None:
        code = frame.f_code
        if "importlib" not in code.co_filename:
            where = code.co_filename.rpartition("site-packages/")[2]
            is_ours = f"{ROOT}/t2t/" in code.co_filename
            if is_ours or is_innermost:
                where = where.removeprefix(f"{ROOT}/")
                yield f"{where}:{frame.f_lineno} {code.co_name}"
            is_innermost = False
        frame = frame.f_back


def intervals(stacks: list[tuple[float, tuple[str, ...]]]) -> Iterator[str]:
    """A tree: each stretch of time below one line of code, with the parts within."""

    def level(start: int, stop: int, depth: int) -> Iterator[str]:
        first = start
        while first < stop:
            stack = stacks[first][1]
            name = stack[depth] if depth < len(stack) else None
            last = first
            while (
                last < stop
                and (stacks[last][1][depth] if depth < len(stacks[last][1]) else None)
                == name
            ):
                last += 1
            begins = stacks[first][0]
            ends = stacks[min(last, len(stacks) - 1)][0]
            if name is not None and ends - begins >= SHORTEST:
                yield f"{begins:7.2f} {ends - begins:6.2f} s {'  ' * depth}{name}"
                yield from level(first, last, depth + 1)
            first = last

    return level(0, len(stacks), 0)


def main() -> None:
    """Runs the parts that fit into the time."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--only", nargs="*", help="names of parts")
    parser.add_argument("--sample", type=Path, help="sample one command into this file")
    parser.add_argument("words", nargs="*", help="the command to sample")
    options = parser.parse_args()
    if options.sample is not None:
        sys.exit(sample(options.sample, options.words))
    options.out.mkdir(parents=True, exist_ok=True)
    WORK.mkdir(parents=True, exist_ok=True)
    ends = time.monotonic() + 60 * options.minutes
    run = Measurement(options.out)
    for name, minutes, measure in JOBS:
        if options.only and name not in options.only:
            continue
        if time.monotonic() + 60 * minutes > ends:
            print(f"{name}: {minutes} min do not fit")
            continue
        try:
            row = measure(run)
        except Exception as error:  # the other parts are measured all the same
            row = {"error": f"{type(error).__name__}: {error}"}
        line = json.dumps({"part": name, **row})
        print(line, flush=True)
        with (options.out / "start.jsonl").open("a") as file:
            file.write(f"{line}\n")


if __name__ == "__main__":
    main()
