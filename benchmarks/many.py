"""Speed of one process of many on one GPU: a process group of one over NCCL.

    python benchmarks/many.py --out records/speed

Every part runs in a process of its own, so that one that fails stops no other.
`--parts` names some of them; `many.log` has what they print.
"""

import argparse
import json
import math
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from t2t.lab.bench import trainer as bench_trainer
from t2t.lab.bench.host_cost import covered
from t2t.lab.bench.timing import time_steps
from t2t.lab.bench.trainer import BenchTrainer, cost_of_launch
from t2t.recipes import imagenet
from t2t.training import step as step_module
from t2t.training.distributed import World, init_distributed
from t2t.training.kernel_compiling import compile_in_parallel
from t2t.training.prepare import rehearse
from t2t.training.runtime import Runtime

MODEL = "t2t_vit_14"
ROWS, LOG = "many-h200.json", "many.log"
NUM_WARM_UPS = 14
"""DDP's eleven, the capture and two replays."""
SECONDS_PER_PART = 100.0


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


PARTS = {
    "single-256": Part(),
    "ddp-256": Part(parallelism="ddp"),
    "single-64": Part(batch=64),
    "ddp-64": Part(batch=64, parallelism="ddp"),
    "uncaptured-256": Part(capture=False),
    "uncaptured-64": Part(batch=64, capture=False),
    "fsdp-256": Part(parallelism="fsdp"),
    "trace": Part(batch=64, parallelism="ddp", trace=True),
    # Only if they are named.
    "ddp-256-strict": Part(parallelism="ddp", strict=True),
    "ddp-64-strict": Part(batch=64, parallelism="ddp", strict=True),
    "ddp-256-uncaptured": Part(parallelism="ddp", capture=False),
    "fsdp-256-captured": Part(parallelism="fsdp", capture=True),
    "fsdp-256-compiled": Part(parallelism="fsdp", compile="on"),
    "uncaptured-256-compiled": Part(capture=False, compile="on"),
    "uncaptured-64-compiled": Part(batch=64, capture=False, compile="on"),
    "ddp-256-compiled": Part(parallelism="ddp", compile="on"),
    "single-256-compiled": Part(compile="on"),
}
USUAL = tuple(PARTS)[:8]


def main() -> None:
    """Measures the parts one after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("."))
    parser.add_argument("--parts", nargs="+", default=USUAL, choices=tuple(PARTS))
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--limit", type=float, default=SECONDS_PER_PART)
    parser.add_argument("--device", default="cuda")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    # Forks share what is imported; none of it has touched the GPU.
    context = multiprocessing.get_context("fork")
    for name in given.parts:
        started = time.monotonic()
        child = context.Process(target=run_part, args=(name, given))
        child.start()
        child.join(given.limit)
        if child.is_alive():
            child.kill()
            child.join()
            report(given.out, f"{name}: killed after {given.limit:g} s")
        took = time.monotonic() - started
        report(given.out, f"{name}: exit code {child.exitcode} after {took:.0f} s")
    add_shares(given.out / ROWS)


def run_part(name: str, given: argparse.Namespace) -> None:
    """Measures one part in this process; its error goes to the log."""
    part = PARTS[name]
    try:
        with init_distributed(
            given.device, group_of_one=part.parallelism is not None
        ) as world:
            trainer = started(part, world)
            if part.trace:
                text = trace_summary(trainer)
                (given.out / "many-trace.txt").write_text(text)
                report(given.out, text)
                leave()
            row = measure(name, part, trainer, given.seconds)
            report(given.out, json.dumps(row))
            with (given.out / ROWS).open("a") as rows:
                rows.write(json.dumps(row) + "\n")
            leave()
    except Exception:
        report(given.out, f"{name} failed:\n{traceback.format_exc()}")
        leave(1)


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
    if world.device.type == "cpu":  # to try this script
        recipe = replace(recipe, model="t2t_vit_7", image_size=(64, 64))
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
    trainer = BenchTrainer(recipe, runtime, world.device, None, world)
    trainer.start()
    stepper = trainer.stepper
    if part.strict is not None:
        stepper.is_strict = part.strict
    if part.trace:
        assert isinstance(trainer.state.trained, step_module.DistributedDataParallel)
        trainer.state.trained.register_comm_hook(None, mean_of_bucket)
    with compile_in_parallel(world.device.type == "cuda") as kernels:
        rehearse(stepper, recipe.phases(), kernels)
        kernels.wait()
    return trainer


def mean_of_bucket(
    _: object, bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """All-reduces a bucket by a mean: NCCL launches a kernel for it in any group.

    A sum over a group of one is nothing, and so launches nothing.
    """
    work = dist.all_reduce(bucket.buffer(), op=dist.ReduceOp.AVG, async_op=True)
    assert work is not None
    return work.get_future().then(lambda future: future.value()[0])


def stepping(trainer: BenchTrainer) -> Callable[[], None]:
    """A function that takes a step, after warm-ups."""
    batches = trainer.stepper.load(trainer.synthetic_batches())

    def step() -> None:
        trainer.step(next(batches))

    for _ in range(NUM_WARM_UPS if trainer.device.type == "cuda" else 1):
        step()
    return step


def measure(
    name: str, part: Part, trainer: BenchTrainer, seconds: float
) -> dict[str, Any]:
    """The row of a part."""
    step, device = stepping(trainer), trainer.device
    trainer.launch_seconds.clear()
    timing = time_steps(step, device, seconds)
    on_cuda = device.type == "cuda"
    captured = trainer.stepper.captured
    row = {
        "part": name,
        "path": trainer.path,
        "model": trainer.recipe.model,
        "batch": part.batch,
        "precision": trainer.runtime.precision,
        "images_per_second": round(part.batch / timing.seconds, 1),
        "milliseconds": round(1e3 * timing.seconds, 3),
        "spread": round(timing.spread, 4),
        "launch": trainer.launch,
        "is_captured": getattr(captured, "graph", None) is not None,
        "is_strict": trainer.stepper.is_strict,
        "host_ms": round(1e3 * statistics.median(trainer.launch_seconds), 3),
        "torch": torch.__version__,
        "gpu": torch.cuda.get_device_name(device) if on_cuda else str(device),
        "command": f"{Path(sys.argv[0]).name} {' '.join(sys.argv[1:])}",
    }
    if on_cuda:
        with guarded(row):
            row |= cost_of_launch(trainer, step)
        with guarded(row):
            row["peak_memory_gib"] = round(
                torch.cuda.max_memory_reserved(device) / 2**30, 2
            )
        row["loss"] = trainer.in_flight[-1].result().loss
        row["num_skipped"] = trainer.state.num_skipped
    return row


@contextmanager
def guarded(row: dict[str, Any]) -> Iterator[None]:
    """Keeps a failure from losing the rest of a row."""
    try:
        yield
    except Exception:
        row["failed"] = traceback.format_exc()


def trace_summary(trainer: BenchTrainer, num_steps: int = 4) -> str:
    """When collectives ran within a replayed step, and beside which kernels."""
    step = stepping(trainer)
    torch.cuda.synchronize()
    activities = [
        torch.profiler.ProfilerActivity.CPU,
        torch.profiler.ProfilerActivity.CUDA,
    ]
    with torch.profiler.profile(activities=activities, acc_events=True) as recorded:
        for _ in range(num_steps):
            step()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        recorded.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    kernels = [event for event in events if event.get("cat") == "kernel"]
    kernels.sort(key=lambda event: event["ts"])
    calls = Counter(
        event["name"] for event in events if event.get("cat") == "cuda_runtime"
    )
    captured = getattr(trainer.stepper.captured, "graph", None) is not None
    nccl = ".".join(map(str, torch.cuda.nccl.version()))
    lines = [
        f"{trainer.recipe.model}, batch {trainer.recipe.batch_size}, {num_steps} steps "
        f"in a group of one over NCCL {nccl}, "
        f"torch {torch.__version__}; the step is a CUDA graph: {captured}",
        "Gradients are averaged (AVG): NCCL launches nothing for a sum of one.",
        "",
        "calls of the CUDA runtime per step:",
        *(
            f"  {count / num_steps:8.2f}  {name}"
            for name, count in calls.most_common(14)
        ),
        "",
        f"kernels per step: {len(kernels) / num_steps:.1f}",
    ]
    names = Counter(short(event["name"]) for event in kernels)
    lines += [f"  {n / num_steps:8.2f}  {name}" for name, n in names.most_common(12)]
    collectives = [event for event in kernels if is_collective(event["name"])]
    lines += ["", f"collective kernels per step: {len(collectives) / num_steps:.2f}"]
    # Those of the last step alone.
    per_step = len(collectives) // num_steps
    for event in collectives[-per_step:] if per_step else []:
        lines += describe(event, kernels)
    return "\n".join(lines) + "\n"


def is_collective(name: str) -> bool:
    """Whether a kernel is one of NCCL's."""
    return "nccl" in name.lower() or "onerank" in name.lower()


def short(name: str) -> str:
    """The name of a kernel without its template arguments."""
    return name.removeprefix("void ")[:90]


def describe(collective: dict[str, Any], kernels: list[dict[str, Any]]) -> list[str]:
    """A collective, the kernels beside it, and those that follow on other streams."""
    stream = collective["args"].get("stream")
    start, end = collective["ts"], collective["ts"] + collective["dur"]
    others = [each for each in kernels if each["args"].get("stream") != stream]
    beside = [e for e in others if e["ts"] < end and e["ts"] + e["dur"] > start]
    shared = covered(
        (max(start, e["ts"]), min(end, e["ts"] + e["dur"])) for e in beside
    )
    after = [e for e in others if e["ts"] >= end][:3]
    node = collective["args"].get("graph node id")
    lines = [
        f"- {short(collective['name'])}: stream {stream}, graph node {node}, "
        f"{end - start:.1f} us, {shared / max(end - start, 1e-9):.0%} of it beside "
        "other kernels"
    ]
    lines += [f"    beside  {short(each['name'])}" for each in beside[:3]]
    lines += [
        f"    {each['ts'] - end:7.1f} us later  {short(each['name'])}" for each in after
    ]
    return lines


def add_shares(path: Path) -> None:
    """Adds the share of the single path's speed to every row."""
    with suppress(FileNotFoundError):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        alone = {
            row["batch"]: row["images_per_second"]
            for row in rows
            if row["part"] == f"single-{row['batch']}"
        }
        for row in rows:
            rate = alone.get(row["batch"], math.nan)
            share = row["images_per_second"] / rate
            row["share_of_single"] = None if math.isnan(share) else round(share, 4)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        for row in rows:
            print(
                f"{row['part']:26} {row['images_per_second']:9.1f} images/s  share "
                f"{row['share_of_single']}  host {row['host_ms']} ms  device "
                f"{row.get('device_ms')} ms  waits {row.get('waits_of_host')}"
            )


if __name__ == "__main__":
    main()
