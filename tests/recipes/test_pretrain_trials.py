"""benchmarks/pretrain_trials.py, at a tiny scale."""

import json
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from t2t.recipes import pretrain

Run = Callable[..., tuple[int, list[dict[str, Any]]]]
SCRIPT = Path(__file__).parents[2] / "benchmarks/pretrain_trials.py"
TINY = [
    "image_size=8",
    "batch_size=16",
    "model_args.depth=1",
    "model_args.dim=16",
    "model_args.num_heads=2",
    "model_args.token_dim=8",
    "model_args.splits=[[3,2,1],[3,1,1],[3,1,1]]",
]
OF_A_RECORD = {
    "task",
    "linear_top1",
    "knn_top1",
    "finetuned_top1",
    "labels",
    "pretrain_minutes",
}
"""What a record of a pre-training adds to its summary."""


@pytest.fixture
def run_script(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the script on tiny images; its exit status and its rows."""

    def run(*words: str) -> tuple[int, list[dict[str, Any]]]:
        out = tmp_path / "rows.jsonl"
        options = ["--out", str(out), "--runs", str(tmp_path), "--device", "cpu"]
        words = (str(SCRIPT), str(images), *words, *options, "--set", *TINY)
        monkeypatch.setattr(sys, "argv", [*words])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(SCRIPT), run_name="__main__")
        lines = out.read_text().splitlines() if out.exists() else []
        return int(ended.value.code or 0), [json.loads(line) for line in lines]

    return run


def test_a_trial_writes_what_a_record_needs(run_script: Run) -> None:
    shares = ["--tune", "0.5:fine_tuned@2", "1:cifar10.t2t_vit_7@1"]
    trial = "simclr+task_args.hidden_dim=16+optimizer.lr=1e-2@2"
    status, rows = run_script(trial, *shares, "--scratch-epochs", "1")
    assert status == 0
    features, half, _, whole, scratch = rows
    assert features.keys() >= OF_A_RECORD
    assert (features["task"], features["labels"]) == ("simclr", None)
    assert (half["labels"], whole["labels"]) == (0.5, 1.0)
    for row in (half, whole):
        assert 0 <= row["finetuned_top1"] <= 100
        assert row["linear_top1"] == features["linear_top1"]
        assert row["feature_std"] > 0
    assert scratch["task"] == "classify"
    assert scratch["epochs"] > 1  # as long as pre-training and fine-tuning


def test_the_best_trial_is_trained_longer_and_no_row_is_written_twice(
    run_script: Run,
) -> None:
    small = "task_args.hidden_dim=16"
    words = (f"simclr+muon+{small}@1", f"byol+{small}@1", "best@3")
    words = (*words, "--no-scratch", "--tune", "0.5:fine_tuned@1")
    status, rows = run_script(*words)
    assert status == 0
    simclr, byol, best, tuned = rows
    assert [row["epochs"] for row in rows] == [1, 1, 3, 3]
    assert [row["labels"] for row in rows] == [None, None, None, 0.5]
    better = simclr if simclr["linear_top1"] >= byol["linear_top1"] else byol
    assert best["trial"] == tuned["trial"] == better["trial"].replace("@1", "@3")
    assert run_script(*words) == (0, rows)


def test_the_best_trial_may_last_minutes() -> None:
    script = runpy.run_path(str(SCRIPT))
    splits = script["Splits"](range(1000), (), "images")
    bench = script["Bench"](splits, None, 0.0)
    for trial, top1 in (("simclr@1", 60.0), ("byol+muon@2", 61.0)):
        bench.scored[trial] = {"linear_top1": top1, "images_per_second": 50.0}
    assert script["best_trial"]("best@4m", bench) == "byol+muon@12"
    assert script["best_trial"]("best@7", bench) == "byol+muon@7"


def test_the_time_ends_a_trial(run_script: Run) -> None:
    words = ("byol+task_args.hidden_dim=16@9999", "--minutes", "0.03")
    assert run_script(*words) == (1, [])


def test_every_method_has_a_recipe() -> None:
    script = runpy.run_path(str(SCRIPT))
    options = script["argparse"].Namespace(data="photos", set=["batch_size=64"])
    for name in pretrain.RECIPES:
        found = script["pretrain_recipe"](f"{name}+optimizer.lr=1e-3@8", options)
        assert (found.task, found.epochs, found.batch_size) == (name, 8, 64)
        assert (found.data, found.optimizer.lr) == ("photos", 1e-3)
        scratch = script["scratch_recipe"](found, 500, 30)
        assert (scratch.model, scratch.model_args) == (found.model, found.model_args)
        assert (scratch.epochs, scratch.evaluate_every) == (30, 30)
        assert scratch.batch_size < 500
