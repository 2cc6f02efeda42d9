"""From cases to rows: each measured, or with the reason why it could not be."""

import gc
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch

from t2t.lab.bench.cases import COMPILED, REPLAYED, Case, operations_of
from t2t.lab.bench.profiling import Profile, profile_steps
from t2t.lab.bench.steps import STEPS, captured
from t2t.lab.bench.timing import (
    Peak,
    Step,
    matrix_rate,
    name_of,
    synchronise,
    time_steps,
)

Row = dict[str, Any]
NUM_WARM_UPS = 3


class Ready(NamedTuple):
    """A step that is compiled and has run."""

    step: Step
    peak_memory_gib: float | None
    compile_seconds: float


class Measured(NamedTuple):
    """A row, and where its time went if that was asked."""

    row: Row
    profile: Profile | None = None


def measure(
    case: Case, device: torch.device, *, seconds: float = 3.0, profiled: bool = False
) -> tuple[Row, Profile | None]:
    """The row of a case, and where its time goes."""
    operations = operations_of(case)
    torch.manual_seed(0)
    ready = get_ready(case, device)
    timing = time_steps(ready.step, device, seconds)
    rate = case.batch / timing.seconds
    # Measured at the end, when the hardware is as warm as the step found it.
    fastest = matrix_rate(device, case.precision)
    row = {
        "images_per_second": round(rate, 1),
        "spread": round(timing.spread, 4),
        "milliseconds": round(1e3 * timing.seconds, 3),
        "peak_memory_gib": rounded(ready.peak_memory_gib),
        "matrix_share": round(rate * operations / fastest, 4),
        "matrix_tflops": round(fastest / 1e12, 2),
        "compile_seconds": round(ready.compile_seconds, 1),
    }
    profile = profile_steps(ready.step, device) if profiled else None
    if profile is not None:
        row["busy_share"] = rounded(profile.busy_share, 4)
    return row, profile


def get_ready(case: Case, device: torch.device) -> Ready:
    """Builds, compiles, warms up and captures a step."""
    on_cuda = device.type == "cuda"
    # The best that convolutions can do, for peers too.
    torch.backends.cudnn.benchmark = on_cuda
    # As the trainer: what stays in float32 beside half precision may be less exact.
    exact = case.precision == "fp32"
    torch.set_float32_matmul_precision("highest" if exact else "high")
    peak = Peak(device)
    model = case.build().to(device)
    step = STEPS[case.mode](model, case, device)
    synchronise(device)
    started = time.perf_counter()
    # Compiling, cuDNN's choices and capturing all want a stream of their own.
    with torch.cuda.stream(torch.cuda.Stream(device)) if on_cuda else nullcontext():
        for _ in range(1 if case.launch == "eager" else NUM_WARM_UPS):
            step()
        # One step that is launched, not replayed: a graph hides its memory.
        peak.reset()
        step()
        memory = peak.gib()
    synchronise(device)
    if case.launch in REPLAYED:
        step = captured(step)
    compiled = case.launch in COMPILED
    compiling = time.perf_counter() - started if compiled else 0.0
    return Ready(step, memory, compiling)


def measure_cases(
    cases: Sequence[Case],
    device: torch.device,
    command: str,
    *,
    seconds: float = 3.0,
    profiled: bool = False,
) -> Iterator[Measured]:
    """One row after the other; a case that fails says why and stops no other."""
    for case in cases:
        operations_of(case)  # refuses what no model can be before anything runs
    for case in cases:
        profile = None
        try:
            figures, profile = measure(case, device, seconds=seconds, profiled=profiled)
        except Exception as error:
            figures = failed(error)
        # Outside of the handler, whose error holds on to what the step held.
        free(device)
        yield Measured(described(case, device, figures, command), profile)


def described(case: Case, device: torch.device, figures: Row, command: str) -> Row:
    """The figures of a case with what they are of."""
    row = {
        "model": case.model,
        "mode": case.mode,
        "image_size": case.image_size,
        "batch": case.batch,
        "precision": case.precision,
        "source": "synthetic",
        "launch": case.launch,
        **figures,
        "torch": torch.__version__,
        "gpu": name_of(device),
        "command": command,
    }
    return row if case.depth is None else {**row, "depth": case.depth}


def failed(error: Exception) -> Row:
    """The figures of what could not be measured: none, and why."""
    words = str(error)
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        "can't allocate memory" in words
    ):
        reason = "out of memory"
    else:
        first = words.splitlines()[0] if words.strip() else ""
        reason = f"{type(error).__name__}: {first}".strip(": ")
    return {"images_per_second": None, "peak_memory_gib": None, "failed": reason}


def free(device: torch.device) -> None:
    """Gives back what a case held, compiled programs included."""
    torch.compiler.reset()
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def rounded(value: float | None, digits: int = 3) -> float | None:
    """A measured number, or that there is none."""
    return None if value is None else round(value, digits)
