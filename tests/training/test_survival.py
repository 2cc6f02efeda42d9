"""Runs that are killed, stopped or out of room go on by the same call."""

import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from run_assertions import assert_metrics_are_whole, assert_model_saved, untimed_rows

from t2t.data.sampler import Batch
from t2t.errors import UserError
from t2t.models.trained import load_trained
from t2t.training import train as train_module
from t2t.training.checkpoint_files import checkpoints, is_intact
from t2t.training.logging import run_logger
from t2t.training.recipe import OptimizerConfig, Recipe
from t2t.training.runtime import Runtime
from t2t.training.step import Stepper
from t2t.training.step_result import PendingStep
from t2t.training.train import train

Tiny = Callable[..., Recipe]
Start = Callable[..., BaseProcess]


def test_killed_at_random_moments(
    recipe: Recipe,
    eager: Runtime,
    tmp_path: Path,
    start: Start,
    expected: dict[str, torch.Tensor],
    uninterrupted: Path,
) -> None:
    folder = tmp_path / "run"
    draw = random.Random(0)
    num_killed = 0
    while not (folder / "result.json").exists():
        before = {*(folder / "last").glob("step-*")}
        process = start("train_alone", recipe, folder, eager)
        deadline = time.monotonic() + 60
        # Each process may do a step or two, so that killing comes to an end.
        while process.is_alive() and time.monotonic() < deadline:
            if {*(folder / "last").glob("step-*")} - before:
                break
            time.sleep(0.01)
        process.join(draw.uniform(0, 0.2) if num_killed < 4 else 60)
        process.kill()
        process.join()
        if process.exitcode == -signal.SIGKILL:
            num_killed += 1
            newest = checkpoints(folder / "last")[:1]
            assert all(is_intact(path) for path in newest)
    assert num_killed >= 2
    assert_model_saved(folder, expected)
    assert_metrics_are_whole(folder)
    assert untimed_rows(folder) == untimed_rows(uninterrupted)
    assert not (folder / "last").exists()


@pytest.mark.parametrize(
    ("row_every", "is_eager", "stops"),
    [
        # At the first step, within epochs of three, after an evaluation.
        (5, False, (1, 3, 2, 5, None)),
        # After an evaluation, before the end.
        (1, True, (4, 7, None)),
    ],
)
def test_a_resumed_run_logs_what_an_uninterrupted_one_does(
    row_every: int,
    is_eager: bool,
    stops: tuple[int | None, ...],
    recipe: Recipe,
    eager: Runtime,
    cpu: Runtime,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    interrupt_after: Callable[[int | None], None],
) -> None:
    monkeypatch.setattr(run_logger, "NUM_ROWS", 12 // row_every)
    interrupt_after(None)
    train(recipe, folder=tmp_path / "whole", runtime=cpu, quiet=True)
    folder = tmp_path / "stopped"
    for stop in stops:
        interrupt_after(stop)
        runtime = eager if is_eager else cpu
        train(recipe, folder=folder, runtime=runtime, quiet=True)
    assert untimed_rows(folder) == untimed_rows(tmp_path / "whole")
    rows = [row for row in untimed_rows(tmp_path / "whole") if "loss" in row]
    every = {1: [*range(1, 13)], 5: [1, 6, 12]}[row_every]
    assert [row["step"] for row in rows] == every


def test_the_rate_and_the_duration_of_a_resumed_run_agree(
    recipe: Recipe,
    cpu: Runtime,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    interrupt_after: Callable[[int | None], None],
) -> None:
    start_step, now, late = Stepper.start_step, time.monotonic, [0.0]

    def slowly(stepper: Stepper, batch: Batch, *given: Any) -> PendingStep:
        late[0] += 10 if stepper.state.step < 5 else 1
        return start_step(stepper, batch, *given)

    monkeypatch.setattr(Stepper, "start_step", slowly)
    monkeypatch.setattr(time, "monotonic", lambda: now() + late[0])
    for stop in (5, None):
        interrupt_after(stop)
        summary = train(recipe, folder=tmp_path, runtime=cpu, quiet=True).summary
    images = 60 * summary["train_minutes"] * summary["images_per_second"]
    assert images == pytest.approx(12 * 16, rel=0.02)  # the rate is rounded
    assert summary["train_minutes"] == pytest.approx(57 / 60, rel=0.1)


@pytest.mark.parametrize("at", ["save", "seal", "sync_folder"])
def test_killed_while_a_checkpoint_is_written(
    at: str,
    recipe: Recipe,
    eager: Runtime,
    tmp_path: Path,
    start: Start,
    expected: dict[str, torch.Tensor],
    cpu: Runtime,
) -> None:
    folder = tmp_path / "run"
    process = start("train_and_die", recipe, folder, eager, at)
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    whole = 2 if at == "sync_folder" else 1
    assert [is_intact(path) for path in checkpoints(folder / "last")] == [True] * whole
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "lo')  # as a power cut leaves it
    train(recipe, folder=folder, runtime=cpu, quiet=True)
    assert_model_saved(folder, expected)
    assert_metrics_are_whole(folder)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_saves_and_leaves_in_peace(
    number: signal.Signals,
    recipe: Recipe,
    cpu: Runtime,
    tmp_path: Path,
    start: Start,
    expected: dict[str, torch.Tensor],
) -> None:
    folder = tmp_path / "run"
    process = start("train_alone", recipe, folder, cpu)
    deadline = time.monotonic() + 60
    metrics_file = folder / "metrics.jsonl"
    while not (metrics_file.exists() and metrics_file.stat().st_size):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert process.pid is not None
    os.kill(process.pid, number)
    process.join(60)
    assert process.exitcode == 0
    (newest,) = checkpoints(folder / "last")
    assert is_intact(newest)
    assert train(recipe, folder=folder, runtime=cpu, quiet=True).finished
    assert_model_saved(folder, expected)


def test_finished_run_is_not_trained_again(
    recipe: Recipe, cpu: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    short = replace(recipe, epochs=1)
    first = train(short, folder=folder, runtime=cpu, quiet=True)
    monkeypatch.delattr(train_module, "Trainer")
    again = train(short, folder=folder, runtime=cpu, quiet=True)
    assert again == replace(first, already_finished=True)
    with pytest.raises(UserError, match=r"another recipe \(epochs: 1 → 5\)"):
        train(replace(recipe, epochs=5), folder=folder, runtime=cpu, quiet=True)


@pytest.mark.parametrize("harm", ["gone", "cut", "empty"])
def test_a_finished_run_whose_model_is_lost_says_so(
    harm: str, recipe: Recipe, cpu: Runtime, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    short = replace(recipe, epochs=1)
    train(short, folder=folder, runtime=cpu, quiet=True)
    model = folder / "model.safetensors"
    content = model.read_bytes()
    model.write_bytes(content[:-9] if harm == "cut" else b"")
    if harm == "gone":
        model.unlink()
    with pytest.raises(
        UserError, match=r"its model is lost.*model\.safetensors"
    ) as lost:
        train(short, folder=folder, runtime=cpu, quiet=True)
    assert "add --fresh" in str(lost.value)
    with pytest.raises(UserError, match=r"run") as reported:
        load_trained(folder)
    if harm == "gone":
        assert "removed after the run had finished" in str(reported.value)
    assert train(short, folder=folder, runtime=cpu, quiet=True, fresh=True).finished


@pytest.mark.parametrize("harm", ["deleted", "damaged"])
def test_a_run_without_checkpoints_says_that_it_starts_again(
    harm: str,
    recipe: Recipe,
    cpu: Runtime,
    tmp_path: Path,
    uninterrupted: Path,
    interrupt_after: Callable[[int | None], None],
) -> None:
    folder = tmp_path / "run"
    interrupt_after(5)
    train(recipe, folder=folder, runtime=cpu, quiet=True)
    if harm == "deleted":
        shutil.rmtree(folder / "last")
    else:
        (checkpoints(folder / "last")[0] / "numbers.json").write_text("{")
    interrupt_after(None)
    assert train(recipe, folder=folder, runtime=cpu, quiet=True).finished
    said = (folder / "log.txt").read_text()
    assert said.count(": training starts again from step 0.") == 1
    assert untimed_rows(folder) == untimed_rows(uninterrupted)


@pytest.mark.parametrize("harm", ["removed", "cut"])
def test_a_run_whose_recipe_is_lost_says_what_to_do(
    harm: str,
    recipe: Recipe,
    cpu: Runtime,
    tmp_path: Path,
    interrupt_after: Callable[[int | None], None],
) -> None:
    folder = tmp_path / "run"
    interrupt_after(5)
    train(recipe, folder=folder, runtime=cpu, quiet=True)
    interrupt_after(None)
    path = folder / "recipe.json"
    path.unlink() if harm == "removed" else path.write_text("{")
    reported = {
        "removed": "but no recipe.json of their run; restore",
        "cut": "Restore it",
    }
    with pytest.raises(UserError, match=reported[harm]):
        train(recipe, folder=folder, runtime=cpu, quiet=True)
    assert checkpoints(folder / "last")


def test_fresh_starts_over_but_never_in_a_folder_of_something_else(
    recipe: Recipe, cpu: Runtime, tmp_path: Path
) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    for fresh in (False, True):
        with pytest.raises(UserError, match="not a run's"):
            train(recipe, folder=tmp_path, runtime=cpu, fresh=fresh, quiet=True)
    assert (tmp_path / "thesis.tex").read_text() == "x"
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / ".recipe.json.writing").write_text("{")  # killed at its very start
    short = replace(recipe, epochs=1)
    train(short, folder=folder, runtime=cpu, quiet=True)
    other = replace(short, seed=3)
    result = train(other, folder=folder, runtime=cpu, fresh=True, quiet=True)
    assert result.summary["seed"] == 3


@pytest.mark.parametrize(
    "changes",
    [
        {"optimizer": OptimizerConfig(name="adamv")},
        {"model": "t2t_vit_8"},
        {"weights": "nowhere.safetensors"},
        {"data": "nowhere"},
        {"batch_size": 10_000},
    ],
)
def test_what_cannot_start_deletes_nothing_and_leaves_nothing(
    changes: dict[str, Any], tiny: Tiny, cpu: Runtime, tmp_path: Path
) -> None:
    before = tmp_path / "before"
    train(tiny(epochs=1), folder=before, runtime=cpu, quiet=True)
    there = {path: path.read_bytes() for path in before.rglob("*") if path.is_file()}
    for folder in (before, tmp_path / "new"):
        with pytest.raises(UserError):
            train(tiny(**changes), folder=folder, runtime=cpu, quiet=True, fresh=True)
    assert {path: path.read_bytes() for path in there} == there
    assert [path.name for path in tmp_path.iterdir()] == ["before"]


def test_one_class_is_nothing_to_learn(
    tiny: Tiny, cpu: Runtime, tmp_path: Path
) -> None:
    folder = tmp_path / "cats" / "cat"
    folder.mkdir(parents=True)
    for number in range(12):
        Image.new("RGB", (8, 8), (number, 0, 0)).save(folder / f"{number}.png")
    recipe = tiny(data=str(tmp_path / "cats"))
    with pytest.raises(UserError, match=r"images of one class only \(cat\)"):
        train(recipe, folder=tmp_path / "run", runtime=cpu, quiet=True)
