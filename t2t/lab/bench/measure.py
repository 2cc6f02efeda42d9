"""Measures cases; each gives a row with its speed or the reason it failed."""

import gc
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from rich.console import Console

from t2t.lab.bench.cases import COMPILED, REPLAYED, Case, case_flops
from t2t.lab.bench.profiling import Profile, profile_steps
from t2t.lab.bench.steps import STEPS, captured
from t2t.lab.bench.timing import (
    PeakMemory,
    Step,
    device_name,
    matrix_rate,
    synchronise,
    time_steps,
)
from t2t.training.logging.stage import stage

Row = dict[str, Any]
NUM_WARM_UPS = 3


class PreparedStep(NamedTuple):
    """A step that is compiled and warmed up."""

    step: Step
    peak_memory_gib: float | None
    compile_seconds: float


class MeasuredRow(NamedTuple):
    """A row, with a profile if requested."""

    row: Row
    profile: Profile | None = None


def measure(
    case: Case, device: torch.device, *, seconds: float = 3.0, profiled: bool = False
) -> tuple[Row, Profile | None]:
    """The row of a case, and its profile if requested."""
    flops = case_flops(case)
    torch.manual_seed(0)
    compiles = case.launch in COMPILED
    words = f"{'Compiling' if compiles else 'Preparing'} {case.model}"
    with stage(Console(stderr=True), words):
        prepared = prepare_step(case, device)
    timing = time_steps(prepared.step, device, seconds)
    rate = case.batch / timing.seconds
    # Measured last, when the hardware is as warm as during the steps.
    fastest = matrix_rate(device, case.precision)
    row = {
        "images_per_second": round(rate, 1),
        "spread": round(timing.spread, 4),
        "milliseconds": round(1e3 * timing.seconds, 3),
        "peak_memory_gib": rounded(prepared.peak_memory_gib),
        "matrix_share": round(rate * flops / fastest, 4),
        "matrix_tflops": round(fastest / 1e12, 2),
        "compile_seconds": round(prepared.compile_seconds, 1),
    }
    profile = profile_steps(prepared.step, device) if profiled else None
    if profile is not None:
        row["busy_share"] = rounded(profile.busy_share, 4)
    return row, profile


def prepare_step(case: Case, device: torch.device) -> PreparedStep:
    """Builds, compiles, warms up and captures a step."""
    on_cuda = device.type == "cuda"
    # The best that convolutions can do, for peers too.
    torch.backends.cudnn.benchmark = on_cuda
    # As the trainer: what stays in float32 beside half precision may be less exact.
    exact = case.precision == "fp32"
    torch.set_float32_matmul_precision("highest" if exact else "high")
    peak = PeakMemory(device)
    model = case.build().to(device)
    step = STEPS[case.mode](model, case, device)
    synchronise(device)
    started = time.perf_counter()
    # Compiling, cuDNN's choices and capturing all want a stream of their own.
    with torch.cuda.stream(torch.cuda.Stream(device)) if on_cuda else nullcontext():
        for _ in range(1 if case.launch == "eager" else NUM_WARM_UPS):
            step()
        # A graph hides its memory: this step is launched, not replayed.
        peak.reset()
        step()
        memory = peak.gib()
    synchronise(device)
    if case.launch in REPLAYED:
        step = captured(step)
    compiled = case.launch in COMPILED
    compiling = time.perf_counter() - started if compiled else 0.0
    return PreparedStep(step, memory, compiling)


def measure_cases(
    cases: Sequence[Case],
    device: torch.device,
    command: str,
    *,
    seconds: float = 3.0,
    profiled: bool = False,
) -> Iterator[MeasuredRow]:
    """Yields a row per case; one that fails gives its reason and stops no other."""
    for case in cases:
        case_flops(case)  # raises an error for impossible models before anything runs
    for case in cases:
        profile = None
        try:
            figures, profile = measure(case, device, seconds=seconds, profiled=profiled)
        except Exception as error:
            figures = failed_row(error)
        # Outside of the handler, whose error keeps the step's tensors alive.
        free_memory(device)
        yield MeasuredRow(case_row(case, device, figures, command), profile)


def case_row(case: Case, device: torch.device, figures: Row, command: str) -> Row:
    """The figures of a case with its description."""
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
        "gpu": device_name(device),
        "command": command,
    }
    return row if case.depth is None else {**row, "depth": case.depth}


def failed_row(error: Exception) -> Row:
    """The figures of a failed measurement: the reason."""
    words = str(error)
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        "can't allocate memory" in words
    ):
        reason = "out of memory"
    else:
        first = words.splitlines()[0] if words.strip() else ""
        reason = f"{type(error).__name__}: {first}".strip(": ")
    return {"images_per_second": None, "peak_memory_gib": None, "failed": reason}


def free_memory(device: torch.device) -> None:
    """Frees the memory and the compiled code of a case."""
    torch.compiler.reset()
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def rounded(value: float | None, digits: int = 3) -> float | None:
    """A rounded number, or None."""
    return None if value is None else round(value, digits)
