"""Where a step's time goes: its kernels by name, and how busy the device is."""

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
    """One kernel, or on a CPU one operator, over a step."""

    name: str
    milliseconds: float
    """Of a step."""
    share: float
    """Of the time that all kernels take together."""
    calls: float
    """In a step."""


@dataclass(frozen=True)
class Profile:
    """The kernels of a step, longest first."""

    kernels: tuple[Kernel, ...]
    busy_share: float | None
    """Time in which at least one kernel ran; None on a CPU."""


def profile_steps(step: Step, device: torch.device, num_steps: int = 5) -> Profile:
    """Runs some steps under torch's profiler."""
    on_cuda = device.type == "cuda"
    activities = [ProfilerActivity.CPU]
    if on_cuda:
        activities.append(ProfilerActivity.CUDA)
    step()
    synchronise(device)
    # There is one cycle only; without acc_events some releases warn of several.
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
        return Profile(longest(times, num_steps), busy_share(spans))
    averages = recorded.key_averages()
    operators = [
        (event.key, event.self_cpu_time_total / event.count)
        for event in averages
        for _ in range(event.count)
    ]
    return Profile(longest(operators, num_steps), None)


def is_kernel(event: Any) -> bool:
    """Whether an event is work of the GPU, not a name that spans such work."""
    annotation = getattr(event, "is_user_annotation", False)
    return event.device_type == DeviceType.CUDA and not annotation


def longest(times: Iterable[tuple[str, float]], num_steps: int) -> tuple[Kernel, ...]:
    """Kernels by the microseconds that they take in all."""
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
    """Of the time from the first start to the last end, that within any span."""
    ordered = sorted(spans)
    if not ordered:
        return None
    busy, reached = 0.0, ordered[0][0]
    for start, end in ordered:
        busy += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return busy / (reached - ordered[0][0])
