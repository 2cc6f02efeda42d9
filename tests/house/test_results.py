"""The results in the README come from the records, and the records are whole."""

import importlib
import json
import statistics
from pathlib import Path

import pytest

from t2t.lab.records.record import SUMMARY_KEYS

ROOT = Path(__file__).parents[2]
SUMMARIES = sorted((ROOT / "records").glob("*/summary.json"))


@pytest.mark.parametrize("path", SUMMARIES, ids=lambda path: path.parent.name)
def test_a_record_can_be_checked(path: Path) -> None:
    summary = json.loads(path.read_text())
    assert [*summary] == [*SUMMARY_KEYS]
    recipe = json.loads((path.parent / "recipe.json").read_text())
    assert summary["recipe"] == recipe["name"]
    assert summary["model"] == recipe["model"]
    assert summary["epochs"] == recipe["epochs"]
    assert len(summary["top1"]) == len(summary["top1_raw"]) == len(summary["seeds"])
    names = {each.name for each in path.parent.iterdir()}
    assert {"README.md", "environment.json", "curves.png"} <= names
    minutes: dict[str, list[float]] = {"train": [], "compile": []}
    scores = zip(summary["seeds"], summary["top1"], summary["top1_raw"], strict=True)
    for seed, top1, raw in scores:
        rows = (path.parent / f"seed{seed}.jsonl").read_text().splitlines()
        last = [row for row in map(json.loads, rows) if "top1" in row][-1]
        found = (last["epoch"], last["top1"], last["top1_raw"])
        assert found == (summary["epochs"], top1, raw)
        for what, some in minutes.items():
            some.append(last[f"{what}_seconds"] / 60)
    for what, some in minutes.items():
        mean = statistics.fmean(some)
        assert summary[f"{what}_minutes"] == pytest.approx(mean, abs=2e-3)


def test_a_row_states_mean_and_spread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    section = importlib.import_module("results_table").results_section
    assert section(tmp_path) == ""
    summary = {
        "recipe": "cifar10.it",
        "data": "path/to/cifar10",
        "model": "t2t_vit_7_32",
        "parameters": 4_043_264,
        "epochs": 60,
        "seeds": [0, 1, 2],
        "top1": [97.0, 97.2, 97.4],
        "top1_raw": [96.9, 97.0, 97.3],
        "train_minutes": 1.2,
        "compile_minutes": 0.5,
        "gpu": "NVIDIA H200",
        "command": "t2t train cifar10.it",
    }
    for name, minutes, top1 in (("b", 1.2, [97.0, 97.2, 97.4]), ("a", 11.26, [98.0])):
        (tmp_path / name).mkdir()
        changed = summary | {"train_minutes": minutes, "top1": top1}
        (tmp_path / name / "summary.json").write_text(json.dumps(changed))
    assert section(tmp_path).splitlines()[-2:] == [
        "| `cifar10.it` | cifar10 | `t2t_vit_7_32` | 4.04 M | 60 | 11.3 min | "
        "98.00 (1) | NVIDIA H200 | [a](records/a) |",
        "| `cifar10.it` | cifar10 | `t2t_vit_7_32` | 4.04 M | 60 | 72 s | "
        "97.20 ± 0.20 (3) | NVIDIA H200 | [b](records/b) |",
    ]


def test_every_record_is_listed() -> None:
    page = (ROOT / "records" / "README.md").read_text()
    folders = {path.name for path in (ROOT / "records").iterdir() if path.is_dir()}
    assert [name for name in sorted(folders) if f"[{name}]({name})" not in page] == []
