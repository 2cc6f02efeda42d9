"""Advice after divergence: nothing that is set already, and it works as typed."""

import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from t2t.cli import main
from t2t.training.divergence import divergence_advice, retyped_command
from t2t.training.recipe import OptimizerConfig, Recipe
from t2t.training.runtime import Runtime

FOLDER = Path("runs/own")
CHECKPOINT = FOLDER / "last" / "step-000000120"


def recipe(**optimizer: Any) -> Recipe:
    return Recipe(
        name="own",
        model="t2t_vit_7_32",
        data="x",
        optimizer=OptimizerConfig(**optimizer),
    )


@pytest.fixture(autouse=True)
def typed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["t2t", "train", "own", "--set", "seed=3"])


def test_what_is_set_already_is_not_advised() -> None:
    reported = divergence_advice(
        recipe(clip_norm=1.0), Runtime(precision="fp32"), FOLDER, None
    )
    assert reported.splitlines()[-1].strip() == (
        "t2t train own --set seed=3 --set optimizer.lr=0.0003 --fresh"
    )
    assert "checkpoint" not in reported
    reported = divergence_advice(
        recipe(lr=0.3, body_lr=3e-5), Runtime(precision="bf16"), FOLDER, None
    )
    assert reported.endswith(
        "--precision fp32 --set optimizer.lr=0.1 --set optimizer.body_lr=1e-05 --set "
        "optimizer.clip_norm=1 --fresh"
    )


@pytest.mark.parametrize(("name", "advised"), [("muon", True), ("sgd", False)])
def test_a_rate_that_the_optimizer_ignores_is_not_advised(
    name: str, advised: bool
) -> None:
    given = recipe(name=name, lr=0.3, adamw_lr=0.003)
    reported = divergence_advice(given, Runtime(precision="fp32"), FOLDER, None)
    assert ("optimizer.adamw_lr=0.001" in reported) == advised


def test_a_checkpoint_is_named_and_kept() -> None:
    runtime = Runtime(precision="bf16")
    reported = divergence_advice(recipe(clip_norm=0.5), runtime, FOLDER, CHECKPOINT)
    assert "The checkpoint of step 120 is kept in runs/own/last." in reported
    resumed, again = (line for line in reported.splitlines() if line.startswith("  "))
    assert resumed.strip() == "t2t train own --set seed=3 --precision fp32"
    assert again.endswith(
        "--precision fp32 --folder runs/own-lr0.0003 --set optimizer.lr=0.0003"
    )


@pytest.mark.parametrize(
    "said",
    [
        "--set optimizer.lr=1 --precision bf16 --fresh",
        "--fresh --set=optimizer.lr=1 --precision=bf16",
    ],
)
def test_what_was_typed_before_is_replaced(
    said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["train", "--data", "a b", *said.split(), "--seed", "2"]
    monkeypatch.setattr(sys, "argv", ["t2t", *words])
    reported = retyped_command(
        {"optimizer.lr": "0.1"}, {"--precision": "fp32"}, "--fresh"
    )
    assert reported == (
        "t2t train --data 'a b' --seed 2 --precision fp32 --set optimizer.lr=0.1 "
        "--fresh"
    )
    monkeypatch.setattr(sys, "argv", ["script.py", "x"])
    assert retyped_command({}, {"--precision": "fp32"}) == "t2t … --precision fp32"


@pytest.mark.parametrize("evaluate_every", [1, 9])
def test_the_advised_command_works(
    evaluate_every: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    sizes = ["dim=16", "depth=1", "num_heads=1", "token_dim=8"]
    settings = [*(f"model_args.{size}" for size in sizes), "batch_size=512", "epochs=9"]
    settings += ["optimizer.lr=1e30", f"evaluate_every={evaluate_every}"]
    settings += ["schedule.warmup_epochs=0"]
    words = ["train", "--folder", str(tmp_path / "run"), "--device", "cpu"]
    words += [word for each in settings for word in ("--set", each)]
    monkeypatch.setattr(sys, "argv", ["t2t", *words])
    assert main(words) == 2
    reported = capsys.readouterr().err
    assert ("The checkpoint of step" in reported) == (evaluate_every == 1)
    assert "fp32" not in reported  # which it is
    command = shlex.split(reported.splitlines()[-1])
    assert command[0] == "t2t"
    # As divergent as before, but begun in earnest.
    assert main(command[1:]) == 2
    assert "optimizer.lr=1e+29" in capsys.readouterr().err
