"""Measures what a step costs the host: its launch, and its waits for the device."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function

from t2t.lab.bench.profiling import is_kernel
from t2t.lab.bench.timing import Step, synchronise

NUM_STEPS = 10
"""Steps that are profiled."""
LAUNCH = "t2t.launch"
"""The range of a profile in which a step is launched."""
WAITS = {
    f"{prefix}{name}"
    for prefix, names in {
        "cuda": ("StreamSynchronize", "EventSynchronize", "DeviceSynchronize"),
        "cu": ("StreamSynchronize", "EventSynchronize", "CtxSynchronize"),
    }.items()
    for name in names
} | {"cudaMemcpy", "cudaMemcpy2D"}
"""Calls that return once the device is done."""


class HostCost(NamedTuple):
    """What a step costs the host and the device."""

    device_ms: float
    """Time per step in which a kernel ran."""
    waits_of_host: float
    """Waits for the device per step, while it is launched."""


def launching() -> Any:
    """The range in which a step is launched."""
    return record_function(LAUNCH)


def host_cost(step: Step, device: torch.device) -> HostCost:
    """Profiles some steps, which are launched within `launching`."""
    step()
    synchronise(device)
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with profile(activities=activities, acc_events=True) as recorded:
        for _ in range(NUM_STEPS):
            step()
        synchronise(device)
    events = list(recorded.events() or [])
    on_host = [event for event in events if event.device_type == DeviceType.CPU]
    launches = [span(event) for event in on_host if event.name == LAUNCH]
    waits = [span(event) for event in on_host if event.name in WAITS]
    num_waits = sum(
        any(start <= begin <= end for start, end in launches) for begin, _ in waits
    )
    busy = covered(span(event) for event in events if is_kernel(event))
    return HostCost(busy / 1e3 / NUM_STEPS, num_waits / NUM_STEPS)


def span(event: Any) -> tuple[float, float]:
    """Start and end of an event, in microseconds."""
    return event.time_range.start, event.time_range.end


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """The time that spans cover."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
