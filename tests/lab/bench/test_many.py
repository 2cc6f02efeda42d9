"""The benchmark of many processes on one GPU, tried on a CPU."""

import subprocess
import sys
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from t2t.training.forecast.measured_steps import read_rows

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "many.py"


def run(out: Path, *options: str) -> str:
    command = [sys.executable, str(SCRIPT), "--out", str(out), "--device", "cpu"]
    finished = subprocess.run(
        [*command, "--seconds", "0.01", *options],
        check=True,
        capture_output=True,
        text=True,
        timeout=200,
    )
    return finished.stdout


def test_parts_run_apart_and_leave_rows(tmp_path: Path) -> None:
    measured = ("single-64", "ddp-64", "fsdp-256-blocks", "uncaptured-64")
    parts = (*measured, "trace", "trace-fsdp")
    printed = run(tmp_path, "--parts", *parts)
    rows = {row["part"]: row for row in read_rows(tmp_path / "many-cpu.json")}
    assert [*rows] == [*measured]
    assert [row["path"] for row in rows.values()] == ["single", "ddp", "fsdp", "single"]
    single, ddp = rows["single-64"], rows["ddp-64"]
    share = ddp["images_per_second"] / single["images_per_second"]
    assert ddp["share_of_single"] == pytest.approx(share, abs=1e-3)
    assert rows["fsdp-256-blocks"]["share_of_single"] is None
    for row in rows.values():
        assert row["launch"] == "eager"
        assert row["host_ms"] > 0
        assert "failed" not in row
    traces = (tmp_path / "many-trace.txt").read_text()
    for part in parts[-2:]:
        assert f"{part}: t2t_vit_7, batch 8, 4 steps in a group of one over" in traces
    assert "trace: exit code 0" in printed
    assert printed.count("images/s  share") == 4


@pytest.fixture
def many(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(SCRIPT.parent)
    # The script sets it for its processes; other tests ask for CUDA in another way.
    monkeypatch.setenv("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    import many

    return many


def test_a_part_that_hangs_is_killed(
    many: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(many, "run_part", lambda name, given: time.sleep(60))
    assert not many.has_run("single-64", Namespace(out=tmp_path), 0.2)
    assert "single-64: killed after 0 s" in (tmp_path / "many.log").read_text()


def test_a_part_that_fails_says_why_in_the_log(
    many: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(many, "started", lambda part, world: 1 / 0)
    assert not many.has_run("single-64", Namespace(out=tmp_path, device="cpu"), 60)
    log = (tmp_path / "many.log").read_text()
    assert "single-64 failed:" in log
    assert "ZeroDivisionError" in log


def test_the_time_of_all_parts_is_bounded(
    many: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(0, 1000, 20))
    limits: dict[str, float] = {}

    def has_run(name: str, given: Namespace, limit: float) -> bool:
        limits[name] = limit
        return name != "trace"

    monkeypatch.setattr(many, "has_run", has_run)
    monkeypatch.setattr(many, "time", Namespace(monotonic=lambda: next(clock)))
    command = ["many.py", "--out", str(tmp_path), "--device", "cpu", "--total", "100"]
    parts = ("single-64", "trace", "single-256", "ddp-64")
    monkeypatch.setattr(sys, "argv", [*command, "--limit", "70", "--parts", *parts])
    many.main()
    # A trace that fails is tried in another way at once.
    assert limits == {"single-64": 70, "trace": 60, "trace-sum": 40, "single-256": 20}
    assert "ddp-64: left out, 0 s are left" in (tmp_path / "many.log").read_text()


def kernel(name: str, stream: int, start: float, duration: float) -> dict[str, Any]:
    arguments = {"stream": stream, "graph node id": 7}
    return {
        "cat": "kernel",
        "name": name,
        "ts": start,
        "dur": duration,
        "args": arguments,
    }


def test_a_trace_says_what_runs_beside_a_collective(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(SCRIPT.parent)
    from many_trace import summarized

    step = [
        kernel("void gemm<float>", 7, 0, 10),
        kernel("ncclDevKernel_AllReduce", 9, 5, 10),
        kernel("void norm", 7, 20, 5),
    ]
    calls = [{"cat": "cuda_runtime", "name": "cudaGraphLaunch"}]
    events = [*step, *calls, *({**e, "ts": e["ts"] + 100} for e in step), *calls]
    text = summarized(events, 2)
    assert "    1.00  cudaGraphLaunch" in text
    assert "kernels per step: 3.0" in text
    assert "      0.01 ms      1.00  gemm<float>" in text
    assert "collective kernels per step: 1.00" in text
    assert "stream 9, graph node 7, 10.0 us, 50% of it beside other kernels" in text
    assert "beside  gemm<float>" in text
    assert "5.0 us later  norm" in text
