"""Profiles a step: its kernels, and how busy the GPU is."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from t2t.lab.bench.timing import Step, synchronise

NUM_KERNELS = 25


@dataclass(frozen=True)
class Kernel:
    """One kernel (on a CPU, one operator) of a step."""

    name: str
    milliseconds: float
    """Per step."""
    share: float
    """Share of the time of all kernels."""
    calls: float
    """Per step."""


@dataclass(frozen=True)
class Profile:
    """The kernels of a step, longest first."""

    kernels: tuple[Kernel, ...]
    busy_share: float | None
    """Share of the time in which a kernel ran; None on a CPU."""


def profile_steps(step: Step, device: torch.device, num_steps: int = 5) -> Profile:
    """Runs some steps under torch's profiler."""
    on_cuda = device.type == "cuda"
    activities = [ProfilerActivity.CPU]
    if on_cuda:
        activities.append(ProfilerActivity.CUDA)
    step()
    synchronise(device)
    # Without acc_events some releases of torch warn.
    with profile(activities=activities, acc_events=True) as recorded:
        for _ in range(num_steps):
            step()
        synchronise(device)
    if on_cuda:
        events = [event for event in recorded.events() or [] if is_kernel(event)]
        spans = [(event.time_range.start, event.time_range.end) for event in events]
        times = [
            (event.name, end - start)
            for event, (start, end) in zip(events, spans, strict=True)
        ]
        return Profile(longest_kernels(times, num_steps), busy_share(spans))
    averages = recorded.key_averages()
    operators = [
        (event.key, event.self_cpu_time_total / event.count)
        for event in averages
        for _ in range(event.count)
    ]
    return Profile(longest_kernels(operators, num_steps), None)


def is_kernel(event: Any) -> bool:
    """Whether an event is a GPU kernel, not an annotation."""
    annotation = getattr(event, "is_user_annotation", False)
    return event.device_type == DeviceType.CUDA and not annotation


def longest_kernels(
    times: Iterable[tuple[str, float]], num_steps: int
) -> tuple[Kernel, ...]:
    """The kernels with the largest total time, given in microseconds."""
    total: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    for name, microseconds in times:
        total[name] += microseconds  # type: ignore[assignment]
        calls[name] += 1
    everything = sum(total.values()) or 1
    return tuple(
        Kernel(name, time / 1e3 / num_steps, time / everything, calls[name] / num_steps)
        for name, time in total.most_common(NUM_KERNELS)
    )


def busy_share(spans: Iterable[tuple[float, float]]) -> float | None:
    """Share of the time between first start and last end that spans cover."""
    ordered = sorted(spans)
    if not ordered:
        return None
    busy, reached = 0.0, ordered[0][0]
    for start, end in ordered:
        busy += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return busy / (reached - ordered[0][0])
