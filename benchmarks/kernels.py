"""Times kernels on a GPU over their tiles, warps and stages; fastest first, as JSON.

    python benchmarks/kernels.py attention --out rows.json
    python benchmarks/kernels.py residual_norm gelu --only 197

Each setting is checked against float64 before it is timed, and must give the same bits
twice. A wrong one is left out of the table and makes the command fail.
"""

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from statistics import median

import torch
from kernel_attention import attention, attention_pairs
from kernel_passes import gelu, residual_norm
from kernel_settings import Setting
from replay import replayed, room_to_flush
from torch import Tensor
from torch._library.triton import set_wrap_triton_enabled

OPERATIONS: dict[str, Callable[[bool], Iterable[Setting]]] = {
    "attention": attention,
    "residual_norm": residual_norm,
    "gelu": gelu,
}
"""What lists the settings of an operation; inexact ones are run, but not checked."""
FOLLOW_UPS: dict[str, Callable[[dict[tuple[str, str], str]], Iterable[Setting]]] = {
    "attention": attention_pairs,
}
"""What makes more settings of the best ones, by operation and shape."""
ERROR_LIMIT = 1e-2  # bfloat16 keeps 8 bits; a row left out of 256 makes 6e-2


@dataclass(frozen=True)
class Row:
    """What one setting came to."""

    operation: str
    shape: str
    setting: str
    microseconds: float
    fastest: float
    terabytes_per_second: float
    error: float
    gpu: str
    torch: str
    command: str


def run(setting: Setting) -> tuple[Tensor, ...]:
    """Launches the kernels themselves, without telling the compiler."""
    with set_wrap_triton_enabled(False):
        return setting.run()


def compile_some(names: Sequence[str], only: str, share: tuple[int, int]) -> list[str]:
    """Runs every `step`-th setting once, to fill Triton's cache."""
    first, step = share
    failures = []
    for setting in settings_of(names, only, exact=False)[first::step]:
        try:
            run(setting)
            torch.cuda.synchronize()
        except torch.AcceleratorError as error:
            # This process can launch nothing any more: the rest is compiled later.
            return [*failures, f"{setting.name}\t{first_line(error)}"]
        except Exception as error:
            failures.append(f"{setting.name}\t{first_line(error)}")
    return failures


def first_line(error: Exception) -> str:
    """What an error says, in short."""
    return f"{type(error).__name__}: {str(error).strip().splitlines()[:1]}"


def settings_of(names: Sequence[str], only: str, exact: bool) -> list[Setting]:
    """All settings of these operations whose name has this text."""
    found = [setting for name in names for setting in OPERATIONS[name](exact)]
    return [setting for setting in found if only in setting.name]


def compile_all(names: Sequence[str], only: str) -> dict[str, str]:
    """Fills Triton's cache from many processes; which settings failed, and why."""
    workers = max(1, min(14, (os.cpu_count() or 2) - 2))
    with ProcessPoolExecutor(
        workers, mp_context=multiprocessing.get_context("spawn")
    ) as pool:
        parts = [
            pool.submit(compile_some, names, only, (first, workers))
            for first in range(workers)
        ]
        failures = [line for part in parts for line in part.result()]
    return dict(line.split("\t", 1) for line in failures)


def error_of(setting: Setting) -> float:
    """The largest relative error of an output; infinite where two runs differ."""
    found, again = run(setting), run(setting)
    errors = []
    for one, other, wanted in zip(found, again, setting.wanted(), strict=True):
        if not torch.equal(one, other):
            return float("inf")
        difference = (one.double() - wanted).norm() / wanted.norm()
        errors.append(difference.item())
    return max(errors, key=lambda error: float("inf") if error != error else error)


def measured(
    settings: Iterable[Setting],
    failures: dict[str, str],
    complain: Callable[[str], None],
) -> list[Row]:
    """Rows of the settings that compile and are right."""
    flush = room_to_flush()
    rows = []
    for setting in settings:
        if setting.name in failures:
            complain(f"FAILED {setting.name}: {failures[setting.name]}")
            continue
        try:
            error = error_of(setting)
            if not error < ERROR_LIMIT:
                complain(f"WRONG {setting.name}: error {error:.2e}")
                continue
            times = replayed(partial(run, setting), flush)
        except torch.AcceleratorError as broken:
            complain(f"STOPPED at {setting.name}: {first_line(broken)}")
            return rows
        except Exception as broken:
            complain(f"FAILED {setting.name}: {first_line(broken)}")
            continue
        typical = median(times)
        rows.append(
            Row(
                operation=setting.operation,
                shape=setting.shape,
                setting=setting.setting,
                microseconds=round(typical, 2),
                fastest=round(min(times), 2),
                terabytes_per_second=round(setting.num_bytes / typical / 1e6, 3),
                error=error,
                gpu=torch.cuda.get_device_name(),
                torch=torch.__version__,
                command=" ".join(["python", *sys.argv]),
            )
        )
    return rows


def show(rows: Sequence[Row]) -> None:
    """Tables, one for each operation and shape, the fastest first."""
    what = lambda row: (row.operation, row.shape)  # noqa: E731
    for (operation, shape), group in groupby(sorted(rows, key=what), key=what):
        ordered = sorted(group, key=lambda row: row.microseconds)
        print(f"\n{operation}, {shape}")
        print(f"{'µs':>9} {'fastest':>9} {'TB/s':>7} {'error':>9}  setting")
        for row in ordered:
            print(
                f"{row.microseconds:9.1f} {row.fastest:9.1f}"
                f" {row.terabytes_per_second:7.2f} {row.error:9.1e}  {row.setting}"
            )
        print(f"best: {ordered[0].setting}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("operations", nargs="+", choices=sorted(OPERATIONS))
    parser.add_argument("--only", default="", help="settings whose name has this text")
    parser.add_argument("--out", type=Path, help="where rows are written as JSON")
    options = parser.parse_args()
    complaints: list[str] = []

    def complain(text: str) -> None:
        complaints.append(text)
        print(text, file=sys.stderr, flush=True)

    begin = time.perf_counter()
    failures = compile_all(options.operations, options.only)
    print(f"compiled in {time.perf_counter() - begin:.0f} s", flush=True)
    settings = settings_of(options.operations, options.only, exact=True)
    rows = measured(settings, failures, complain)
    for name in options.operations:
        if name in FOLLOW_UPS:
            best: dict[tuple[str, str], tuple[float, str]] = {}
            for row in rows:
                key = (row.operation, row.shape)
                new = (row.microseconds, row.setting)
                best[key] = min(new, best.get(key, new))
            more = FOLLOW_UPS[name]({key: text for key, (_, text) in best.items()})
            rows += measured(more, {}, complain)
    show(rows)
    if options.out:
        options.out.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    print(f"\n{len(rows)} settings in {time.perf_counter() - begin:.0f} s")
    if complaints:
        sys.exit(
            f"{len(complaints)} settings failed or were wrong:\n"
            + "\n".join(complaints)
        )


if __name__ == "__main__":
    main()
