"""The best evaluation: kept beside the last, saved as the model; the end of a run."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import example_tasks
import pytest
import torch
from run_assertions import untimed_rows
from safetensors.torch import load_file
from torch import nn

from t2t.models.trained import load_trained
from t2t.tasks.base import VAL_LOSS
from t2t.tasks.classify import TOP1
from t2t.training import model_saver
from t2t.training.best import BestEvaluation
from t2t.training.evaluation.evaluate_model import evaluate_model
from t2t.training.recipe import Recipe
from t2t.training.run_files import read_json
from t2t.training.runtime import Runtime
from t2t.training.train import train

assert example_tasks.Peak  # its module registers the task

Tiny = Callable[..., Recipe]


@pytest.fixture(scope="module")
def peak(tiny: Tiny) -> Recipe:
    """Of its four evaluations, the second is the best."""
    return tiny(task="test_peak", evaluate_every=1, random=True)


@pytest.fixture(scope="module")
def whole(peak: Recipe, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that nothing happened to."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    torch.set_num_threads(1)
    train(peak, folder=folder, runtime=Runtime(device="cpu"), quiet=True)
    return folder


def assert_same_weights(found: Path, expected: Path) -> None:
    ours, theirs = load_file(found), load_file(expected)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_a_better_evaluation_than_the_last_is_kept_beside_it(
    peak: Recipe, whole: Path, cpu: Runtime, tmp_path: Path
) -> None:
    result = read_json(whole / "result.json")
    assert (result["best_epoch"], result["last_epoch"]) == (2, 4)
    assert result["top1"] == result["last_score"] < result["best_score"]
    assert (whole / "best.safetensors").exists()
    # What it was at that time: the model of a run that is stopped there.
    stopped = tmp_path / "stopped"
    short = replace(peak, patience=1)
    train(short, folder=stopped, runtime=cpu, quiet=True)
    assert read_json(stopped / "result.json")["last_epoch"] == 3
    assert_same_weights(stopped / "best.safetensors", whole / "best.safetensors")
    ours, last = (
        load_file(whole / f"{each}.safetensors") for each in ("best", "model")
    )
    assert any(not torch.equal(ours[name], last[name]) for name in last)
    report = evaluate_model(whole / "best.safetensors", device="cpu")
    assert report is not None
    assert "score here is too optimistic" in " ".join(report.notes)
    report = evaluate_model(whole, device="cpu")
    assert report is not None
    assert report.notes == ()


def test_best_saves_these_weights_and_their_scores(
    peak: Recipe, whole: Path, cpu: Runtime, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    result = train(replace(peak, keep="best"), folder=folder, runtime=cpu, quiet=True)
    assert_same_weights(folder / "model.safetensors", whole / "best.safetensors")
    assert not (folder / "best.safetensors").exists()
    report = evaluate_model(folder, device="cpu")
    assert report is not None
    assert "score here is too optimistic" in " ".join(report.notes)
    summary = result.summary
    assert summary["top1"] == summary["best_score"] > summary["last_score"]
    row = next(row for row in untimed_rows(folder) if row.get("epoch") == 2)
    assert summary["val_loss"] == row["val_loss"]


@pytest.mark.parametrize(
    ("stop", "keep"), [(5, "last"), (7, "last"), (9, "last"), (7, "best")]
)
def test_what_is_best_survives_a_stop(
    stop: int,
    keep: str,
    peak: Recipe,
    whole: Path,
    cpu: Runtime,
    tmp_path: Path,
    interrupt_after: Callable[[int | None], None],
) -> None:
    folder = tmp_path / "run"
    for step in (stop, None):
        interrupt_after(step)
        train(replace(peak, keep=keep), folder=folder, runtime=cpu, quiet=True)
    best = "best" if keep == "last" else "model"
    assert_same_weights(folder / f"{best}.safetensors", whole / "best.safetensors")
    assert untimed_rows(folder) == untimed_rows(whole)
    for name in ("best_epoch", "best_score", "last_score"):
        ours, theirs = (read_json(each / "result.json") for each in (folder, whole))
        assert ours[name] == theirs[name]


def test_a_killed_run_finds_what_was_best(
    peak: Recipe, whole: Path, tmp_path: Path, cpu: Runtime, start: Callable[..., Any]
) -> None:
    """Killed while the checkpoint after the third evaluation is written."""
    folder = tmp_path / "run"
    process = start("train_and_die", peak, folder, cpu, "seal")
    process.join(60)
    assert not (folder / "result.json").exists()
    train(peak, folder=folder, runtime=cpu, quiet=True)
    assert_same_weights(folder / "best.safetensors", whole / "best.safetensors")


def test_a_run_stops_where_nothing_improves_and_stays_stopped(
    peak: Recipe, cpu: Runtime, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    recipe = replace(peak, epochs=8, patience=2)  # the peak is at epoch 4
    result = train(recipe, folder=folder, runtime=cpu)
    assert result.finished
    assert result.summary["steps"] == 6 * 3
    sentence = result.summary["stopped_early"]
    assert sentence.startswith(
        "Stopped early after epoch 6 of 8: top-1 has not improve"
    )
    assert "since epoch 4 (" in sentence
    assert "patience=2" in sentence
    assert "Stopped early" in capsys.readouterr().out
    again = train(recipe, folder=folder, runtime=cpu, quiet=True)
    assert again.already_finished
    assert again.summary["stopped_early"] == sentence


def test_a_run_that_stopped_early_and_found_no_room_ends_when_resumed(
    peak: Recipe, cpu: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    recipe = replace(peak, epochs=8, patience=2)
    with monkeypatch.context() as patch:
        patch.setattr(model_saver.ModelSaver, "write", no_room)
        with pytest.raises(model_saver.UserError, match=r"step 18 of 18"):
            train(recipe, folder=folder, runtime=cpu, quiet=True)
    result = train(recipe, folder=folder, runtime=cpu, quiet=True)
    assert result.summary["steps"] == 18
    assert result.summary["stopped_early"].startswith("Stopped early after epoch 6")
    assert load_trained(folder / "best.safetensors")


def no_room(*_: object) -> None:
    raise model_saver.UserError("No space left on device.")


def test_the_last_epoch_is_not_an_early_stop(
    peak: Recipe, cpu: Runtime, tmp_path: Path
) -> None:
    recipe = replace(peak, patience=2)
    result = train(recipe, folder=tmp_path / "run", runtime=cpu, quiet=True)
    assert result.summary["steps"] == 12
    assert result.summary["stopped_early"] is None


def test_a_best_model_without_room_is_reported_and_ends_no_run(
    peak: Recipe, cpu: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = model_saver.ModelSaver.write

    def only_last(saver: model_saver.ModelSaver, model: nn.Module, file: Path) -> None:
        no_room() if file.name == "best.safetensors" else write(saver, model, file)

    monkeypatch.setattr(model_saver.ModelSaver, "write", only_last)
    folder = tmp_path / "run"
    assert train(peak, folder=folder, runtime=cpu, quiet=True).finished
    said = (folder / "log.txt").read_text()
    assert "best evaluation could not be written" in said
    assert json.loads((folder / "result.json").read_text())["last_epoch"] == 4


def test_of_equal_evaluations_the_latest_is_kept_and_counts_as_no_improvement() -> None:
    best, model = BestEvaluation(), nn.Linear(1, 1)
    rows = [50.0, 70.0, 70.0, None, 60.0, 70.0]
    kept = [
        best.update(TOP1, {"epoch": number, "top1": value}, model)
        for number, value in enumerate(rows, start=1)
    ]
    assert kept == [True, True, True, False, False, True]
    assert (best.row["epoch"], best.improved_epoch, best.num_since) == (6, 2, 4)


def test_lower_is_better_for_a_loss_and_nothing_is_worse_than_not_finite() -> None:
    best, model = BestEvaluation(), nn.Linear(1, 1)
    rows = [None, 2.0, 3.0, 1.0, None]
    kept = [
        best.update(VAL_LOSS, {"epoch": number, "val_loss": value}, model)
        for number, value in enumerate(rows, start=1)
    ]
    assert kept == [True, True, False, True, False]
    assert best.num_since == 1
    assert not math.isnan(best.row["val_loss"])
    with torch.no_grad():
        model.weight.fill_(7.0)
    assert best.weights["weight"].item() != 7.0


def test_evaluations_that_are_not_finite_are_no_improvement() -> None:
    best, model = BestEvaluation(), nn.Linear(1, 1)
    for epoch in (1, 2, 3):
        assert best.update(TOP1, {"epoch": epoch, "top1": None}, model)
    assert (best.row["epoch"], best.improved_epoch, best.num_since) == (3, 1, 2)
