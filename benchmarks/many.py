"""Speed of one process of many on one GPU: a process group of one over NCCL.

    python benchmarks/many.py --out records/speed
    python benchmarks/many.py --out /tmp/dry --device cpu --seconds 0.1

Every part runs in a process of its own, so that one that fails or hangs stops no other,
and adds its row when it is done. `--parts` names some of them; `many.log` has what they
print. On a CPU the same code runs with a tiny model, which measures nothing.
benchmarks/jobs/many.json has the parts that compare the ways to shard.
"""

import argparse
import importlib
import json
import multiprocessing
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from many_trace import mean_of_bucket, trace_summary
from torch.nn.parallel import DistributedDataParallel

from t2t.lab.bench import trainer as bench_trainer
from t2t.lab.bench.measure_training import cost_of_launch
from t2t.lab.bench.timing import time_steps
from t2t.lab.bench.trainer import BenchTrainer
from t2t.recipes import imagenet
from t2t.training import sharding
from t2t.training import step as step_module
from t2t.training.distributed import World, init_distributed
from t2t.training.kernel_compiling import compile_in_parallel
from t2t.training.prepare import rehearse
from t2t.training.runtime import Runtime

MODEL = "t2t_vit_14"
LOG, TRACE = "many.log", "many-trace.txt"
NUM_WARM_UPS = 14
"""DDP's eleven, the capture and two replays."""
SECONDS_PER_PART = 90.0
SECONDS_OF_ALL = 440.0
"""A lent machine is taken back after ten minutes, and results have to travel."""
MIN_SECONDS = 15.0
"""Less is not enough for a part."""
SLOW_IMPORTS = ("torch._dynamo", "torch.distributed.fsdp")
"""What DDP and FSDP import once they are used."""
TINY_BATCH = 8
TINY = {"dim": 32, "depth": 2, "num_heads": 2, "token_dim": 16}


@dataclass(frozen=True)
class Part:
    """One measurement."""

    batch: int = 256
    parallelism: str | None = None
    """None for a process without a group."""
    capture: bool | None = None
    """Whether the step is a CUDA graph; None for what training does."""
    compile: str = "off"
    strict: bool | None = None
    """Deterministic kernels only; None for what training does."""
    trace: bool = False
    by_blocks: bool = False
    """Each block is gathered and freed by itself, as in a model that is large."""
    averages: bool = False
    """In a trace, the gradient is averaged: NCCL launches nothing for a sum of one."""


PARTS = {
    "single-256": Part(),
    "ddp-256": Part(parallelism="ddp"),
    "single-64": Part(batch=64),
    "ddp-64": Part(batch=64, parallelism="ddp"),
    "fsdp-256": Part(parallelism="fsdp"),
    "uncaptured-64": Part(batch=64, capture=False),
    "uncaptured-256": Part(capture=False),
    "trace": Part(batch=64, parallelism="ddp", trace=True, averages=True),
    # Only if they are named.
    "trace-sum": Part(batch=64, parallelism="ddp", trace=True),
    "ddp-256-strict": Part(parallelism="ddp", strict=True),
    "ddp-64-strict": Part(batch=64, parallelism="ddp", strict=True),
    "ddp-256-uncaptured": Part(parallelism="ddp", capture=False),
    "fsdp-64": Part(batch=64, parallelism="fsdp"),
    "hybrid-256": Part(parallelism="hybrid"),
    "fsdp-256-blocks": Part(parallelism="fsdp", by_blocks=True),
    "fsdp-256-compiled": Part(parallelism="fsdp", compile="on"),
    "fsdp-256-compiled-captured": Part(parallelism="fsdp", compile="on", capture=True),
    "trace-fsdp": Part(parallelism="fsdp", trace=True),
    # As steps of FSDP were launched before they were captured.
    "fsdp-256-uncaptured": Part(parallelism="fsdp", capture=False),
    "fsdp-64-uncaptured": Part(batch=64, parallelism="fsdp", capture=False),
    "fsdp-256-blocks-uncaptured": Part(
        parallelism="fsdp", by_blocks=True, capture=False
    ),
    "trace-fsdp-uncaptured": Part(parallelism="fsdp", capture=False, trace=True),
    "uncaptured-256-compiled": Part(capture=False, compile="on"),
    "uncaptured-64-compiled": Part(batch=64, capture=False, compile="on"),
    "ddp-256-compiled": Part(parallelism="ddp", compile="on"),
    "single-256-compiled": Part(compile="on"),
}
USUAL = tuple(PARTS)[:8]
"""The most wanted first: time may run out."""
INSTEAD = {"trace": "trace-sum"}
"""What is measured if a part fails."""


def main() -> None:
    """Measures the parts one after the other."""
    given = parse()
    given.out.mkdir(parents=True, exist_ok=True)
    # Parts are forks: they share slow imports, and none of these may touch the GPU.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    for name in SLOW_IMPORTS:
        importlib.import_module(name)
    until = time.monotonic() + given.total
    parts = list(given.parts)
    while parts:
        name = parts.pop(0)
        limit = min(given.limit, until - time.monotonic())
        if limit < MIN_SECONDS:
            report(given.out, f"{name}: left out, {max(limit, 0):.0f} s are left")
            continue
        if not has_run(name, given, limit) and name in INSTEAD:
            parts.insert(0, INSTEAD[name])
        add_shares(rows_file(given))
    show(rows_file(given))


def parse() -> argparse.Namespace:
    """The options of this script."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("."))
    parser.add_argument("--parts", nargs="+", default=USUAL, choices=tuple(PARTS))
    parser.add_argument("--seconds", type=float, default=1.5, help="of timed steps")
    parser.add_argument(
        "--limit", type=float, default=SECONDS_PER_PART, help="seconds of a part"
    )
    parser.add_argument(
        "--total", type=float, default=SECONDS_OF_ALL, help="seconds of all parts"
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    return parser.parse_args()


def has_run(name: str, given: argparse.Namespace, limit: float) -> bool:
    """Runs a part in a process; whether it has ended well."""
    assert not torch.cuda.is_initialized()
    started = time.monotonic()
    child = multiprocessing.get_context("fork").Process(
        target=run_part, args=(name, given)
    )
    child.start()
    child.join(limit)
    if child.is_alive():
        child.kill()
        child.join()
        report(given.out, f"{name}: killed after {limit:.0f} s")
    took = time.monotonic() - started
    report(given.out, f"{name}: exit code {child.exitcode} after {took:.0f} s")
    return child.exitcode == 0


def run_part(name: str, given: argparse.Namespace) -> None:
    """Measures one part in this process; its error goes to the log."""
    part = PARTS[name]
    try:
        with init_distributed(
            given.device, group_of_one=part.parallelism is not None
        ) as world:
            trainer = started(part, world)
            step = stepping(trainer)
            if part.trace:
                text = trace_summary(trainer, step)
                with (given.out / TRACE).open("a") as traces:
                    traces.write(f"{name}: {text}\n")
                report(given.out, text)
                leave()
            row = measure(name, part, trainer, step, given.seconds)
            report(given.out, json.dumps(row))
            with rows_file(given).open("a") as rows:
                rows.write(json.dumps(row) + "\n")
            leave()
    except BaseException:
        report(given.out, f"{name} failed:\n{traceback.format_exc()}")
        leave(1)


def rows_file(given: argparse.Namespace) -> Path:
    """Where the rows go: `t2t plan --measured` reads them."""
    gpu = "h200" if given.device == "cuda" else given.device
    path: Path = given.out / f"many-{gpu}.json"
    return path


def leave(code: int = 0) -> None:
    """Ends this process at once: a broken group could not be destroyed."""
    sys.stdout.flush()
    os._exit(code)


def report(folder: Path, text: str) -> None:
    """Prints a text, and adds it to the log."""
    print(text, flush=True)
    with (folder / LOG).open("a") as log:
        log.write(text + "\n")


def started(part: Part, world: World) -> BenchTrainer:
    """A trainer that has taken its first steps."""
    recipe = replace(imagenet.published(MODEL), batch_size=part.batch)
    if world.device.type == "cpu":
        recipe = replace(
            recipe,
            model="t2t_vit_7",
            model_args=TINY,
            image_size=(64, 64),
            batch_size=TINY_BATCH,
        )
    runtime = Runtime(
        device=str(world.device),
        parallelism=part.parallelism or "ddp",  # type: ignore[arg-type]
        compile=part.compile,  # type: ignore[arg-type]
    )
    if part.capture is not None:
        for module in (step_module, bench_trainer):
            module.captures_steps = lambda *_: part.capture  # type: ignore[attr-defined]
        if not part.capture and part.parallelism is None:
            step_module.uses_cuda_graphs = lambda *_: False
    if part.by_blocks:
        sharding.KEPT_BYTES = 0
    trainer = BenchTrainer(recipe, runtime, world.device, None, world)
    trainer.start()
    stepper = trainer.stepper
    if part.strict is not None:
        stepper.forward_backward.is_strict = part.strict
    if part.averages:
        assert isinstance(trainer.state.trained, DistributedDataParallel)
        trainer.state.trained.register_comm_hook(None, mean_of_bucket)
    with compile_in_parallel(world.device.type == "cuda") as kernels:
        rehearse(stepper, recipe.phases(), kernels)
        kernels.wait()
    return trainer


def stepping(trainer: BenchTrainer) -> Callable[[], None]:
    """A function that takes a step, after warm-ups."""
    batches = trainer.stepper.load(trainer.synthetic_batches())

    def step() -> None:
        trainer.step(next(batches))

    for _ in range(NUM_WARM_UPS if trainer.device.type == "cuda" else 1):
        step()
    return step


def measure(
    name: str,
    part: Part,
    trainer: BenchTrainer,
    step: Callable[[], None],
    seconds: float,
) -> dict[str, Any]:
    """The row of a part."""
    device, batch = trainer.device, trainer.recipe.batch_size
    trainer.launch_seconds.clear()
    timing = time_steps(step, device, seconds)
    on_cuda = device.type == "cuda"
    captured = trainer.stepper.captured
    row = {
        "part": name,
        "path": trainer.path,
        "model": trainer.recipe.model,
        "image_size": trainer.recipe.image_size[0],
        "batch": batch,
        "precision": trainer.runtime.precision,
        "images_per_second": round(batch / timing.seconds, 1),
        "milliseconds": round(1e3 * timing.seconds, 3),
        "spread": round(timing.spread, 4),
        "launch": trainer.launch,
        "is_captured": getattr(captured, "graph", None) is not None,
        "is_strict": trainer.stepper.forward_backward.is_strict,
        "host_ms": round(1e3 * statistics.median(trainer.launch_seconds), 3),
        "torch": torch.__version__,
        "gpu": torch.cuda.get_device_name(device) if on_cuda else str(device),
        "command": f"{Path(sys.argv[0]).name} {' '.join(sys.argv[1:])}",
    }
    if on_cuda:
        with guarded(row):
            row |= cost_of_launch(trainer, step)
        with guarded(row):
            memory = torch.cuda.max_memory_reserved(device) / 2**30
            row["peak_memory_gib"] = round(memory, 2)
    with guarded(row):
        row["loss"] = trainer.in_flight.pop().result().loss
        row["num_skipped"] = trainer.state.num_skipped
    return row


@contextmanager
def guarded(row: dict[str, Any]) -> Iterator[None]:
    """Keeps a failure from losing the rest of a row."""
    try:
        yield
    except Exception:
        row["failed"] = traceback.format_exc()


def read(path: Path) -> list[dict[str, Any]]:
    """The rows so far; the last one of each part."""
    rows: dict[str, dict[str, Any]] = {}
    with suppress(FileNotFoundError):
        for line in path.read_text().splitlines():
            row = json.loads(line)
            rows.pop(row["part"], None)
            rows[row["part"]] = row
    return [*rows.values()]


def add_shares(path: Path) -> None:
    """Adds the share of the single path's speed to every row."""
    rows = read(path)
    rates = {row["part"]: row["images_per_second"] for row in rows}
    for row in rows:
        alone = rates.get(f"single-{PARTS[row['part']].batch}")
        share = None if alone is None else round(row["images_per_second"] / alone, 4)
        row["share_of_single"] = share
    written = path.with_suffix(".part")
    written.write_text("".join(json.dumps(row) + "\n" for row in rows))
    written.replace(path)


def show(path: Path) -> None:
    """Prints a line for each row."""
    for row in read(path):
        print(
            f"{row['part']:26} {row['images_per_second']:9.1f} images/s  share "
            f"{row['share_of_single']}  host {row['host_ms']} ms  device "
            f"{row.get('device_ms')} ms  waits {row.get('waits_of_host')}"
        )


if __name__ == "__main__":
    main()
