"""Times `t2t predict` on ONNX Runtime beside PyTorch's modules, on two cores.

    python benchmarks/export_speed.py PHOTOGRAPH --cifar10 PATH --out speed.json

One process alternates between the forms of one model, from a JPEG's bytes to its five
likeliest classes, a photograph at a time: PyTorch's modules, ONNX in float32 and in
int8. Ratios are medians of the ratios of neighbours, which other work on the machine
changes less than the times; CPU seconds of a single thread, which it changes least, are
measured too. Cold starts alternate between whole commands; their CPU
seconds are those of the process. With --cifar10, int8 is evaluated beside float32.
"""

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch

import t2t
from t2t.atomic import write_atomically
from t2t.serving.onnx_predictor import OnnxPredictor
from t2t.serving.predictor import Predictor

THREADS = 2


def alternate(
    forms: dict[str, Callable[[], Any]],
    rounds: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds of each form in each round, in an order that turns."""
    seconds: dict[str, list[float]] = {name: [] for name in forms}
    names = list(forms)
    for name in names * 3:
        forms[name]()
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            started = clock()
            forms[name]()
            seconds[name].append(clock() - started)
    return seconds


def summary(seconds: dict[str, list[float]], base: str) -> dict[str, Any]:
    """Median milliseconds, and how many times as fast as the base."""
    return {
        name: {
            "median_ms": round(1000 * statistics.median(each), 2),
            "least_ms": round(1000 * min(each), 2),
            "times_as_fast": round(
                statistics.median(np.array(seconds[base]) / np.array(each)), 3
            ),
        }
        for name, each in seconds.items()
    }


def cold_starts(commands: dict[str, list[str]], rounds: int) -> dict[str, Any]:
    """Wall and CPU seconds of whole commands, alternating."""
    wall: dict[str, list[float]] = {name: [] for name in commands}
    cpu: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(rounds):
        for name, words in commands.items():
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            started = time.perf_counter()
            subprocess.run(words, check=True, capture_output=True)
            wall[name].append(time.perf_counter() - started)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            cpu[name].append(
                after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
            )
    return {
        name: {
            "wall_seconds": round(statistics.median(wall[name]), 3),
            "least_wall_seconds": round(min(wall[name]), 3),
            "cpu_seconds": round(statistics.median(cpu[name]), 3),
        }
        for name in commands
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("photograph")
    parser.add_argument("--model", default="t2t_vit_14")
    parser.add_argument("--cifar10")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    record: dict[str, Any] = {
        "command": "python benchmarks/export_speed.py PHOTOGRAPH --cifar10 PATH",
        "model": arguments.model,
        "threads": THREADS,
        "torch": torch.__version__,
        "onnxruntime": onnxruntime.__version__,
        "processor": platform.processor() or platform.machine(),
        "load_average_before": os.getloadavg(),
    }
    torch.set_num_threads(THREADS)
    with tempfile.TemporaryDirectory() as folder:
        weights = t2t.save(
            t2t.create_model(arguments.model),
            Path(folder) / "weights.safetensors",
            name=arguments.model,
        )
        files = {name: Path(folder) / f"{name}.onnx" for name in ("float32", "int8")}
        for name, file in files.items():
            images = [arguments.photograph]
            t2t.export(weights, to="onnx", out=file, images=images, int8=name == "int8")
        predictors: dict[str, Any] = {"PyTorch": Predictor(weights, "cpu")}
        for name, file in files.items():
            predictors[f"ONNX {name}"] = OnnxPredictor(file, threads=THREADS)
        forms = {
            name: (lambda each=each: each.predict(arguments.photograph))
            for name, each in predictors.items()
        }
        record["predict"] = summary(alternate(forms, arguments.rounds), "PyTorch")
        torch.set_num_threads(1)
        alone = {
            "PyTorch": predictors["PyTorch"],
            **{
                f"ONNX {name}": OnnxPredictor(file, threads=1)
                for name, file in files.items()
            },
        }
        forms = {
            name: (lambda each=each: each.predict(arguments.photograph))
            for name, each in alone.items()
        }
        seconds = alternate(forms, arguments.rounds, time.process_time)
        record["cpu_seconds_of_one_thread"] = summary(seconds, "PyTorch")
        command = [sys.executable, "-m", "t2t", "predict"]
        record["cold_start"] = cold_starts(
            {
                "python -c pass": [sys.executable, "-c", "pass"],
                "t2t --version": [sys.executable, "-m", "t2t", "--version"],
                "t2t predict model.onnx cat.jpg": [
                    *(*command, str(files["float32"]), arguments.photograph)
                ],
                "t2t predict int8.onnx cat.jpg": [
                    *(*command, str(files["int8"]), arguments.photograph)
                ],
                "t2t predict weights cat.jpg": [
                    *(*command, str(weights), arguments.photograph)
                ],
            },
            rounds=7,
        )
        if arguments.cifar10:
            report = t2t.export(
                "builtin",
                to="onnx",
                out=Path(folder) / "builtin.onnx",
                data=arguments.cifar10,
                int8=True,
                val_images=2000,
            )
            record["builtin_int8"] = report.accuracy
    record["load_average_after"] = os.getloadavg()
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(arguments.out, (json.dumps(record, indent=1) + "\n").encode())
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
