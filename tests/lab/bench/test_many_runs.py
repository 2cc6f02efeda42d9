"""The trainings of benchmarks/many_runs.py, tried on a CPU."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "many_runs.py"


@pytest.fixture
def many_runs(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(SCRIPT.parent)
    import many_runs

    return many_runs


def finished(folder: Path, weight: float) -> None:
    folder.mkdir()
    log = "A step is one CUDA graph.\nStopped at step 5 of 9 with a checkpoint\nother\n"
    (folder / "log.txt").write_text(log)
    (folder / "result.json").write_text(json.dumps({"top1": 50.0, "seed": 0}))
    weights = {"weight": torch.tensor([1.0, weight]), "count": torch.tensor(3)}
    save_file(weights, folder / "model.safetensors")


def test_weights_are_compared_bit_for_bit(many_runs: Any, tmp_path: Path) -> None:
    for name, weight in (("fsdp", 2.0), ("fsdp-resumed", 2.0), ("ddp", 2.5)):
        finished(tmp_path / name, weight)
    first = many_runs.compared(tmp_path, "fsdp")
    assert first["launch"] == ["A step is one CUDA graph."]
    assert first["stopped"] == ["Stopped at step 5 of 9 with a checkpoint"]
    assert (first["top1"], first["steps"]) == (50.0, None)
    assert "same_bits_as_fsdp" not in first
    resumed = many_runs.compared(tmp_path, "fsdp-resumed")
    assert (resumed["same_bits_as_fsdp"], resumed["largest_difference"]) == (True, 0)
    ddp = many_runs.compared(tmp_path, "ddp")
    assert (ddp["same_bits_as_fsdp"], ddp["largest_difference"]) == (False, 0.5)
    assert "top1" not in many_runs.compared(tmp_path, "nothing")


@pytest.mark.slow
def test_a_stopped_run_of_a_group_ends_with_the_same_bits(tmp_path: Path) -> None:
    words = ["digits", "--epochs", "1", "--device", "cpu", "--compile", "off"]
    command = [sys.executable, str(SCRIPT), "--out", str(tmp_path), "--stop-at", "8"]
    subprocess.run([*command, *words], check=True, timeout=170)
    rows = json.loads((tmp_path / "many-runs.json").read_text())
    names = [(row["run"], row["exit_status"]) for row in rows]
    assert names == [
        ("fsdp", 0),
        ("fsdp-resumed", 1),
        ("fsdp-resumed", 0),
        ("ddp", 0),
    ]
    assert "Stopped at step" in rows[1]["stopped"][0]
    assert all(row["same_bits_as_fsdp"] for row in rows[2:])
