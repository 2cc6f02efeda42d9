"""Fuzzes `predict`, `train`, `show` and `t2t.load` with damaged images and weights.

    python benchmarks/mutations.py
    python benchmarks/mutations.py --images 20 --weights 10

Counts the outcomes. It fails on a traceback, a crash, a call that takes longer than 60
seconds, more than 2 GB of resident memory, and on output of a decoder that does not
name the file. Commands run in a monitored worker process; --keep copies the files that
failed.
"""

import argparse
import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mutants import (
    mutated_image,
    mutated_weights,
    original_images,
    original_weights,
)

SECONDS = 60.0
MAX_BYTES = 2 * 10**9
IMAGES_A_RUN = 20
CALLS_A_WORKER = 100
GOOD = ("read", "refused")
CLASSES = ("ant", "bee")
SETTINGS = (
    *("image_size=16", "batch_size=8", "schedule.warmup_epochs=0"),
    *("model_args.dim=16", "model_args.depth=1", "model_args.num_heads=1"),
)


class Worker:
    """Runs calls in a process, and starts a new one after a failure or 100 calls.

    Otherwise memory that one call keeps would count for another.
    """

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.most_bytes = 0
        self.num_calls = 0

    def outcome(self, *call: str) -> tuple[str, str]:
        """The outcome of a call and its output."""
        self.num_calls += 1
        if self.num_calls % CALLS_A_WORKER == 0:
            self.close()
        process = self.process = self.process or started()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(call).encode() + b"\n")
        process.stdin.flush()
        until = time.monotonic() + SECONDS
        while True:
            ready, _, _ = select.select([process.stdout], [], [], 0.02)
            resident = peak_bytes(process.pid)
            self.most_bytes = max(self.most_bytes, resident)
            if resident > MAX_BYTES:
                return self.ended("memory", f"{resident / 1e9:.1f} GB")
            if ready:
                line = process.stdout.readline()
                if not line:
                    return self.ended("crash", f"exit code {process.wait()}")
                kind, said = json.loads(line)
                return kind, said
            if time.monotonic() > until:
                return self.ended("hang", f"{SECONDS:g} s")

    def ended(self, kind: str, said: str) -> tuple[str, str]:
        self.close()
        return kind, said

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None


def started() -> subprocess.Popen[bytes]:
    """Starts a worker and waits until it has imported everything."""
    process = subprocess.Popen(
        [sys.executable, __file__, "--worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "1000"},
    )
    assert process.stdout is not None
    process.stdout.readline()
    return process


def peak_bytes(pid: int) -> int:
    """The peak resident memory of a process; 0 if unknown."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def work() -> None:
    """Runs calls from standard input and answers with their outcomes."""
    import t2t
    from t2t.cli import main as t2t_main
    from t2t.errors import UserError

    answers = os.fdopen(os.dup(1), "w")
    answers.write("ready\n")
    answers.flush()
    calls = os.fdopen(os.dup(0))
    for line in calls:
        sys.stdin = open(os.devnull)  # noqa: SIM115 (commands prepare a new one)
        command, *words = json.loads(line)
        with tempfile.TemporaryFile() as file, redirected(file.fileno()):
            try:
                if command == "load":
                    t2t.load(*words)
                    kind = "read"
                else:
                    code = t2t_main([command, *words])
                    kind = "read" if code == 0 else "refused"
            except UserError:
                kind = "refused"
            except BaseException:
                kind = "traceback"
                traceback.print_exc()
            sys.stdout.flush()
            sys.stderr.flush()
            file.seek(0)
            said = file.read().decode(errors="replace")
        if "Traceback (most" in said:
            kind = "traceback"
        elif kind in GOOD and command == "predict" and decoder_output(said):
            kind, said = "decoder_output", decoder_output(said)
        print(json.dumps([kind, said[-4000:]]), file=answers, flush=True)


@contextlib.contextmanager
def redirected(descriptor: int) -> Iterator[None]:
    """Redirects standard output and error to a file, including that of C code."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = os.dup(1), os.dup(2)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    try:
        yield
    finally:
        for number, old in zip((1, 2), kept, strict=True):
            os.dup2(old, number)
            os.close(old)


def decoder_output(said: str) -> str:
    """Lines of output that are not ours."""
    lines = (line for line in said.splitlines() if not line.startswith(("t2t: ", "{")))
    return "\n".join(lines)


def image_calls(folder: Path, number: int) -> Iterator[tuple[Path, tuple[str, ...]]]:
    """Damaged images one by one to `predict`, and some together to `train`."""
    originals = original_images()
    whole = folder / "whole.safetensors"
    for first in range(0, number, IMAGES_A_RUN):
        data = folder / f"images-{first}"
        for place in range(16):
            split = "train" if place < 12 else "val"
            suffix, content = originals[place % len(originals)]
            write(data / split / CLASSES[place % 2] / f"whole-{place}{suffix}", content)
        for each in range(first, min(first + IMAGES_A_RUN, number)):
            suffix, content = mutated_image(originals, each)
            split = "val" if each % 5 == 4 else "train"
            path = data / split / CLASSES[each % 2] / f"{each}{suffix}"
            write(path, content)
            yield path, ("predict", str(whole), str(path), "--json", "--device", "cpu")
        run = folder / "run"
        words = ["--data", str(data), "--folder", str(run), "--epochs", "1", "--fresh"]
        words += ["--device", "cpu", "--workers", "2", "--set", "model=t2t_vit_7_32"]
        for setting in SETTINGS:
            words += ["--set", setting]
        yield data, ("train", *words)
        shutil.rmtree(data)
        shutil.rmtree(run, ignore_errors=True)


def weight_calls(folder: Path, number: int) -> Iterator[tuple[Path, tuple[str, ...]]]:
    """Damaged weights to `t2t.load` and to `show`."""
    originals = original_weights(folder)
    for each in range(number):
        suffix, content = mutated_weights(originals, each)
        path = folder / f"weights-{each}{suffix}"
        write(path, content)
        yield path, ("load", str(path))
        yield path, ("show", str(path), "--json")
        path.unlink()


def write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--weights", type=int, default=500)
    parser.add_argument("--keep", type=Path, help="a folder for files that failed")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work()
        return
    counts: Counter[tuple[str, str]] = Counter()
    failures: list[dict[str, Any]] = []
    worker = Worker()
    with tempfile.TemporaryDirectory() as work_folder:
        folder = Path(work_folder)
        original_weights(folder)
        calls = [image_calls(folder, options.images)]
        calls.append(weight_calls(folder, options.weights))
        for some in calls:
            for path, call in some:
                kind, said = worker.outcome(*call)
                counts[call[0], kind] += 1
                if kind not in GOOD:
                    failures.append({"file": path.name, "outcome": kind, "said": said})
                    print(f"{call[0]} {path.name}: {kind}\n{said}", flush=True)
                    keep(options.keep, path)
    worker.close()
    for (command, kind), count in sorted(counts.items()):
        print(f"{command:8} {kind:10} {count:6,}")
    print(f"most resident memory: {worker.most_bytes / 1e9:.2f} GB")
    if failures:
        sys.exit(f"{len(failures)} calls failed")


def keep(folder: Path | None, path: Path) -> None:
    if folder is None:
        return
    if path.is_dir():
        shutil.copytree(path, folder / path.name, dirs_exist_ok=True)
    else:
        write(folder / path.name, path.read_bytes())


if __name__ == "__main__":
    main()
