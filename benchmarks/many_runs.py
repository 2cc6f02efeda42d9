"""Whole trainings as one process of many: a process group of one, under torchrun.

    python benchmarks/many_runs.py --out $OUT cifar10.sprint --data $CIFAR10 --epochs 3

Everything after the options of this script goes to `t2t train`. It trains with FSDP;
with FSDP again, where torchrun gets a SIGTERM at a step and the same command resumes;
and with DDP. OUT/many-runs.json gets a row of each, and whether the weights are those
of the first, bit for bit. If the resumed run's are not, the first run is repeated: that
shows whether it is the resume that makes the difference.
"""

import argparse
import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
STOP_AT = "T2T_STOP_AT"
"""In the environment: the step at which torchrun gets a SIGTERM."""
LAUNCHER = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "1")
MINUTES = 2.0
LAUNCHES = ("CUDA graph", "kernel by kernel")
"""Words of the line of a log that says how steps run."""


def main() -> int:
    """Trains all runs, and compares them; 0 if the resumed one has the same bits."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--stop-at", type=int, default=150, help="step of the SIGTERM")
    given, words = parser.parse_known_args()
    runs = Path(tempfile.mkdtemp(prefix="many-runs-"))
    given.out.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []

    def run(name: str, parallelism: str, stop_at: int | None = None) -> dict[str, Any]:
        options = ["--parallelism", parallelism, "--folder", str(runs / name)]
        row = trained(name, [*words, *options], given.out, stop_at)
        row = {"parallelism": parallelism, **row, **compared(runs, name)}
        rows.append(row)
        (given.out / "many-runs.json").write_text(json.dumps(rows, indent=1) + "\n")
        print(json.dumps(row), flush=True)
        return row

    run("fsdp", "fsdp")
    run("fsdp-resumed", "fsdp", given.stop_at)
    resumed = run("fsdp-resumed", "fsdp")
    run("ddp", "ddp")
    if resumed.get("same_bits_as_fsdp"):
        return 0
    run("fsdp-again", "fsdp")
    return 1


def trained(
    name: str, words: list[str], out: Path, stop_at: int | None
) -> dict[str, Any]:
    """Trains a run in processes of their own; its row."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, STOP_AT: str(stop_at or 0)}
    started = time.monotonic()
    with (out / "many-runs.log").open("a") as log:
        process = subprocess.Popen(
            [sys.executable, *LAUNCHER, __file__, "train", *words],
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
        try:
            status: int | None = process.wait(60 * MINUTES)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            status = None
    seconds = round(time.monotonic() - started, 1)
    return {"run": name, "stop_at": stop_at, "exit_status": status, "seconds": seconds}


def compared(runs: Path, name: str) -> dict[str, Any]:
    """What a finished run has reached, and its weights beside those of the first."""
    folder = runs / name
    log = folder / "log.txt"
    lines = log.read_text().splitlines() if log.exists() else []
    found: dict[str, Any] = {
        "launch": [x for x in lines if any(words in x for words in LAUNCHES)],
        "stopped": [line for line in lines if "Stopped at step" in line],
    }
    result = folder / "result.json"
    if not result.exists():
        return found
    summary = json.loads(result.read_text())
    names = ("top1", "top1_raw", "steps", "skipped_steps", "images_per_second")
    found |= {name: summary.get(name) for name in (*names, "train_minutes", "device")}
    if name != "fsdp" and (runs / "fsdp" / "result.json").exists():
        found |= differences(*(runs / each for each in ("fsdp", name)))
    return found


def differences(first: Path, other: Path) -> dict[str, Any]:
    """Whether two runs have the same weights, and by how much they differ at most."""
    import torch
    from safetensors.torch import load_file

    models = [load_file(each / "model.safetensors") for each in (first, other)]
    assert models[0].keys() == models[1].keys()
    pairs = [(models[0][key], models[1][key]) for key in models[0]]
    largest = max(
        (one.double() - two.double()).abs().max().item() for one, two in pairs
    )
    return {
        "same_bits_as_fsdp": all(torch.equal(one, two) for one, two in pairs),
        "largest_difference": largest,
    }


def train_as_one_of_many() -> int:
    """`t2t train` in a process group of one, which may ask torchrun to stop it."""
    from t2t.__main__ import main as run
    from t2t.training import train as train_module
    from t2t.training.distributed import init_distributed
    from t2t.training.step import Stepper

    in_group = functools.partial(init_distributed, group_of_one=True)
    train_module.init_distributed = in_group  # type: ignore[attr-defined]
    stop_at, start_step = int(os.environ[STOP_AT]), Stepper.start_step

    def start_and_stop(one: Stepper, *given: Any) -> Any:
        found = start_step(one, *given)
        if one.state.step == stop_at:
            os.kill(os.getppid(), signal.SIGTERM)
        return found

    Stepper.start_step = start_and_stop  # type: ignore[method-assign, assignment]
    return run()


if __name__ == "__main__":
    if STOP_AT in os.environ:
        sys.exit(train_as_one_of_many())
    sys.exit(main())
