"""What a profile shows of the collectives of a step, for benchmarks/many.py."""

import json
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

from t2t.lab.bench.host_cost import covered
from t2t.lab.bench.timing import Step, synchronise
from t2t.lab.bench.trainer import BenchTrainer

RUNTIME = ("cuda_runtime", "cuda_driver")
"""Categories of calls that the host makes."""


def mean_of_bucket(
    _: object, bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """All-reduces a bucket by a mean: NCCL launches a kernel for it in any group.

    A sum over a group of one is nothing, and so launches nothing.
    """
    buffer = bucket.buffer()
    mean = dist.ReduceOp.AVG if buffer.is_cuda else dist.ReduceOp.SUM
    work = dist.all_reduce(buffer, op=mean, async_op=True)
    assert work is not None
    return work.get_future().then(lambda future: future.value()[0])


def trace_summary(trainer: BenchTrainer, step: Step, num_steps: int = 4) -> str:
    """When collectives ran within a replayed step, and beside which kernels."""
    recipe, captured = trainer.recipe, trainer.stepper.captured
    is_captured = getattr(captured, "graph", None) is not None
    group = "over gloo"
    if trainer.device.type == "cuda":
        group = f"over NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}"
    title = (
        f"{recipe.model}, batch {recipe.batch_size}, {num_steps} steps in a group of "
        f"one {group}, torch {torch.__version__}; the step is a CUDA graph: "
        f"{is_captured}"
    )
    events = recorded_events(step, trainer.device, num_steps)
    return f"{title}\n\n{summarized(events, num_steps)}"


def recorded_events(
    step: Step, device: torch.device, num_steps: int
) -> list[dict[str, Any]]:
    """The events of a profile of some steps."""
    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    step()
    synchronise(device)
    with profile(activities=activities, acc_events=True) as recorded:
        for _ in range(num_steps):
            step()
        synchronise(device)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        recorded.export_chrome_trace(str(path))
        events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    return events


def summarized(events: list[dict[str, Any]], num_steps: int) -> str:
    """Calls, kernels and collectives of a step, from the events of several."""
    kernels = [event for event in events if event.get("cat") == "kernel"]
    kernels.sort(key=lambda event: event["ts"])
    calls = Counter(event["name"] for event in events if event.get("cat") in RUNTIME)
    lines = [
        "calls of the CUDA runtime per step:",
        *(
            f"  {count / num_steps:8.2f}  {name}"
            for name, count in calls.most_common(14)
        ),
        "",
        f"kernels per step: {len(kernels) / num_steps:.1f}",
    ]
    names = Counter(short(event["name"]) for event in kernels)
    times: Counter[str] = Counter()
    for event in kernels:
        times[short(event["name"])] += event["dur"]
    lines += [
        f"  {time / 1e3 / num_steps:8.2f} ms  {names[name] / num_steps:8.2f}  {name}"
        for name, time in times.most_common(20)
    ]
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
