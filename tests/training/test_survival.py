"""Runs that are killed, stopped or out of room go on by the same call."""

import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from t2t.data.sampler import Batch
from t2t.errors import UserError
from t2t.models.checkpoint_io import checksum as weights  # which writes them
from t2t.models.trained import load_trained
from t2t.training import loop, model_saver
from t2t.training.checkpoint_files import checkpoints, is_intact
from t2t.training.logging import metrics, run_logger, trackers
from t2t.training.loop import Runtime, train
from t2t.training.recipe import OptimizerConfig, Recipe
from t2t.training.run_folder import RunFolder
from t2t.training.state import TrainState, new_state
from t2t.training.step import Stepper
from t2t.training.step_result import PendingStep

Tiny = Callable[..., Recipe]
Start = Callable[..., BaseProcess]


@pytest.fixture
def eager(cpu: Runtime) -> Runtime:
    """Writes a checkpoint after every step."""
    return replace(cpu, checkpoint_minutes=0.0)


@pytest.fixture(scope="module")
def recipe(tiny: Tiny) -> Recipe:
    return tiny(random=True)


@pytest.fixture(scope="module")
def uninterrupted(recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that nothing happened to."""
    folder = tmp_path_factory.mktemp("expected") / "run"
    torch.set_num_threads(1)
    train(recipe, folder=folder, runtime=Runtime(device="cpu"), quiet=True)
    return folder


@pytest.fixture(scope="module")
def expected(uninterrupted: Path) -> dict[str, torch.Tensor]:
    """What the recipe comes to when nothing happens to it."""
    return load_file(uninterrupted / "model.safetensors")


def assert_delivered(folder: Path, expected: dict[str, torch.Tensor]) -> None:
    found = load_file(folder / "model.safetensors")
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def untimed_rows(folder: Path) -> list[dict[str, Any]]:
    """The rows of a run without times and rates."""
    timed = {"train_seconds", "compile_seconds", "images_per_second"}
    return [
        {key: value for key, value in json.loads(line).items() if key not in timed}
        for line in (folder / "metrics.jsonl").read_text().splitlines()
    ]


def assert_metrics_are_whole(folder: Path) -> None:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    told = [(row["step"], "top1" in row) for row in rows]
    assert len(told) == len(set(told))
    assert told == sorted(told)
    assert [step for step, scored in told if scored] == [6, 12]


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
    assert_delivered(folder, expected)
    assert_metrics_are_whole(folder)
    assert untimed_rows(folder) == untimed_rows(uninterrupted)
    assert not (folder / "last").exists()


@pytest.mark.parametrize("row_every", [1, 5])
def test_a_resumed_run_logs_what_an_uninterrupted_one_does(
    row_every: int,
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
    # At the first step, within epochs of three, after an evaluation, before the end.
    for runtime, stops in ((cpu, (1, 3, 2, 5, None)), (eager, (4, 7, None))):
        folder = tmp_path / f"stopped {len(stops)}"
        for stop in stops:
            interrupt_after(stop)
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
    assert_delivered(folder, expected)
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
    assert_delivered(folder, expected)


def test_finished_run_is_not_trained_again(
    recipe: Recipe, cpu: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    short = replace(recipe, epochs=1)
    first = train(short, folder=folder, runtime=cpu, quiet=True)
    monkeypatch.delattr(loop, "Trainer")
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
    with pytest.raises(UserError, match=r"run") as told:
        load_trained(folder)
    if harm == "gone":
        assert "removed after the run had finished" in str(told.value)
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


@pytest.fixture
def meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[int, Callable[[], object]], None]:
    """Lets something be done to the disk as a step begins."""
    start_step = Stepper.start_step

    def do(step: int, what: Callable[[], object]) -> None:
        def begin(stepper: Stepper, batch: Batch, *given: Any) -> PendingStep:
            if stepper.state.step + 1 == step:
                what()
            return start_step(stepper, batch, *given)

        monkeypatch.setattr(Stepper, "start_step", begin)

    return do


@pytest.mark.parametrize("step", [5, 8, 12])
@pytest.mark.parametrize("harm", ["removed", "moved", "emptied", "unlocked"])
def test_a_folder_that_is_lost_while_training_is_made_again(
    harm: str,
    step: int,
    recipe: Recipe,
    eager: Runtime,
    cpu: Runtime,
    tmp_path: Path,
    uninterrupted: Path,
    expected: dict[str, torch.Tensor],
    meanwhile: Callable[[int, Callable[[], object]], None],
    interrupt_after: Callable[[int | None], None],
) -> None:
    folder = tmp_path / "run"

    def remove(path: Path) -> None:
        while path.exists():  # a checkpoint may just be written into it
            shutil.rmtree(path, ignore_errors=True)

    def lose() -> None:
        if harm == "removed":
            remove(folder)
        elif harm == "moved":
            folder.rename(tmp_path / "other")
        elif harm == "unlocked":
            (folder / ".lock").unlink()
        else:
            for path in folder.glob("[a-z]*"):
                remove(path) if path.is_dir() else path.unlink()

    meanwhile(step, lose)
    interrupt_after(10 if step < 12 else None)
    given = {"folder": folder, "quiet": True}
    first = train(recipe, runtime=eager if step == 8 else cpu, **given)  # type: ignore[arg-type]
    assert first.finished == (step == 12)
    if step < 12:
        assert checkpoints(folder / "last")[0].name == "step-000000010"
        meanwhile(99, lose)
        interrupt_after(None)
        assert train(recipe, runtime=cpu, **given).finished  # type: ignore[arg-type]
    assert "while training; it was recreated" in (folder / "log.txt").read_text()
    assert_delivered(folder, expected)
    assert untimed_rows(folder) == untimed_rows(uninterrupted)
    again = train(recipe, runtime=cpu, **given)  # type: ignore[arg-type]
    assert again.already_finished


@pytest.mark.parametrize("name", ["recipe.json", "environment.json", "metrics.jsonl"])
@pytest.mark.parametrize("step", [5, 12])
def test_a_file_that_is_removed_while_training_is_written_again(
    step: int,
    name: str,
    recipe: Recipe,
    cpu: Runtime,
    tmp_path: Path,
    uninterrupted: Path,
    expected: dict[str, torch.Tensor],
    meanwhile: Callable[[int, Callable[[], object]], None],
) -> None:
    folder = tmp_path / "run"
    meanwhile(step, (folder / name).unlink)
    assert train(recipe, folder=folder, runtime=cpu, quiet=True).finished
    assert (folder / name).exists()
    said = (folder / "log.txt").read_text()
    assert "removed while training" in said or "file in it was removed" in said
    assert_delivered(folder, expected)
    assert untimed_rows(folder) == untimed_rows(uninterrupted)
    assert train(recipe, folder=folder, runtime=cpu, quiet=True).already_finished


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
    told = {"removed": "but no recipe.json of their run; restore", "cut": "Restore it"}
    with pytest.raises(UserError, match=told[harm]):
        train(recipe, folder=folder, runtime=cpu, quiet=True)
    assert checkpoints(folder / "last")


@pytest.mark.parametrize("other", ["run", "files"])
def test_a_folder_that_is_anothers_by_now_is_left_alone(
    other: str,
    recipe: Recipe,
    cpu: Runtime,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    meanwhile: Callable[[int, Callable[[], object]], None],
) -> None:
    folder = tmp_path / "run"

    def take() -> None:
        folder.rename(tmp_path / "other")
        folder.mkdir()
        (folder / ("recipe.json" if other == "run" else "thesis.tex")).write_text("{}")

    monkeypatch.setattr(model_saver, "fallback_folders", lambda: [tmp_path])
    meanwhile(8, take)
    with pytest.raises(
        UserError, match=r"stopped after step 12; its model was"
    ) as told:
        train(recipe, folder=folder, runtime=cpu, quiet=True)
    assert f"saved to {tmp_path}/run.safetensors." in str(told.value)
    assert load_trained(tmp_path / "run.safetensors").class_names == ("a", "b", "c")
    assert len([*folder.iterdir()]) == 1


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


def test_two_cannot_train_in_one_folder(
    recipe: Recipe, cpu: Runtime, tmp_path: Path
) -> None:
    with (
        RunFolder(tmp_path / "run").hold(),
        pytest.raises(UserError, match="Another process is training"),
    ):
        train(recipe, folder=tmp_path / "run", runtime=cpu, quiet=True)


def test_a_folder_is_held_until_it_is_left_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = RunFolder(tmp_path / "run"), RunFolder(tmp_path / "run")
    refused = []
    unlink = Path.unlink

    def look(path: Path) -> None:
        with pytest.raises(UserError, match="Another process"), second.hold():
            pass
        refused.append(path.name)
        unlink(path)

    with first.hold():
        monkeypatch.setattr(Path, "unlink", look)
    monkeypatch.undo()
    assert refused == [".lock"]
    assert not (tmp_path / "run").exists()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Callable[[range], None]:
    """Lets nothing be written while the run's step is in a range."""
    made: list[TrainState] = []
    full_at = range(0)

    def remember(*arguments: object) -> TrainState:
        made.append(new_state(*arguments))  # type: ignore[arg-type]
        return made[-1]

    def guarded(function: Callable[..., object]) -> Callable[..., object]:
        def write(*arguments: object, **options: object) -> object:
            if made and made[-1].step in full_at:
                raise OSError(28, "No space left on device")
            return function(*arguments, **options)

        return write

    def set_full(steps: range) -> None:
        nonlocal full_at
        full_at = steps

    monkeypatch.setattr(loop, "new_state", remember)
    dcp = "torch.distributed.checkpoint.filesystem._write_item"
    monkeypatch.setattr(
        dcp, guarded(torch.distributed.checkpoint.filesystem._write_item)
    )
    monkeypatch.setattr(weights, "save_file", guarded(weights.save_file))
    monkeypatch.setattr(metrics.os, "write", guarded(os.write))
    return set_full


def test_full_disk_on_the_way_does_not_stop_a_run(
    recipe: Recipe,
    eager: Runtime,
    tmp_path: Path,
    disk: Callable[[range], None],
    expected: dict[str, torch.Tensor],
    capsys: pytest.CaptureFixture[str],
) -> None:
    disk(range(3, 9))
    result = train(recipe, folder=tmp_path / "run", runtime=eager)
    assert result.finished
    told = "".join(capsys.readouterr().out.split())  # lines break anywhere
    for sentence in (
        "training continues, and would resume from",
        "times; now it works again.",
        "model.safetensors could not be written",
    ):
        assert sentence.replace(" ", "") in told
    assert_delivered(tmp_path / "run", expected)


def install_only(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = SimpleNamespace(find_spec=lambda each: True if each == name else None)
    monkeypatch.setattr(trackers, "importlib", SimpleNamespace(util=found))


def test_a_tracker_without_room_does_not_stop_a_run(
    tiny: Tiny, cpu: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full:
        def log(self, *_: object) -> None:
            raise OSError(28, "No space left on device")

        close = log

    monkeypatch.setattr(run_logger, "open_trackers", lambda *_: [Full()])
    assert train(tiny(epochs=1), folder=tmp_path, runtime=cpu, quiet=True).finished
    told = (tmp_path / "log.txt").read_text()
    assert told.count("Full failed (No space left on device) and is not used") == 1


def test_a_resumed_run_is_the_same_to_wandb(
    tiny: Tiny,
    cpu: Runtime,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    interrupt_after: Callable[[int | None], None],
) -> None:
    begun: list[dict[str, Any]] = []

    def init(**options: Any) -> SimpleNamespace:
        begun.append(options)
        if len(begun) == 3:
            raise RuntimeError("no network\nand a trace")
        return SimpleNamespace(log=lambda row, step: None, finish=lambda: None)

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.delenv("WANDB_RUN_ID", raising=False)
    install_only("wandb", monkeypatch)
    for number in (3, 2, None):
        interrupt_after(number)
        result = train(tiny(), folder=tmp_path / "run", runtime=cpu, quiet=True)
    assert result.finished
    assert [options["id"] for options in begun] == [begun[0]["id"]] * 3
    told = (tmp_path / "run/log.txt").read_text()
    assert told.count("A tracker could not be started (no network).") == 1
    interrupt_after(None)
    train(tiny(), folder=tmp_path / "run", runtime=cpu, quiet=True, fresh=True)
    assert begun[3]["id"] != begun[0]["id"]


def test_tensorboard_hides_steps_that_are_done_again(
    tiny: Tiny,
    cpu: Runtime,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    interrupt_after: Callable[[int | None], None],
) -> None:
    opened = []

    class SummaryWriter:
        def __init__(self, folder: str, purge_step: int) -> None:
            opened.append((Path(folder), purge_step))

        def add_scalar(self, key: str, value: float, step: int) -> None:
            assert step >= opened[-1][1]

        def close(self) -> None: ...

    stand_in = SimpleNamespace(SummaryWriter=SummaryWriter)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", stand_in)
    install_only("tensorboard", monkeypatch)
    for number in (5, None):
        interrupt_after(number)
        train(tiny(), folder=tmp_path, runtime=cpu, quiet=True)
    assert opened == [(tmp_path / "tensorboard", 1), (tmp_path / "tensorboard", 6)]


def test_no_checkpoint_is_claimed_that_a_full_disk_did_not_take(
    tiny: Tiny,
    cpu: Runtime,
    tmp_path: Path,
    disk: Callable[[range], None],
    interrupt_after: Callable[[int | None], None],
) -> None:
    disk(range(5, 6))
    for number, words in ((4, " with a checkpoint; run"), (1, " without a checkpoint")):
        interrupt_after(number)
        train(tiny(), folder=tmp_path, runtime=cpu, quiet=True)
        said = (tmp_path / "log.txt").read_text().splitlines()[-1]
        assert words in said
    assert [path.name for path in checkpoints(tmp_path / "last")] == ["step-000000004"]


def test_full_disk_at_the_end_keeps_the_last_checkpoint(
    recipe: Recipe,
    cpu: Runtime,
    tmp_path: Path,
    disk: Callable[[range], None],
    expected: dict[str, torch.Tensor],
) -> None:
    folder = tmp_path / "run"
    disk(range(12, 13))
    with pytest.raises(UserError, match=r"not be written.* of step 6 of 12 is in"):
        train(recipe, folder=folder, runtime=cpu, quiet=True)
    assert [path.name for path in checkpoints(folder / "last")] == ["step-000000006"]
    disk(range(0))
    assert train(recipe, folder=folder, runtime=cpu, quiet=True).finished
    assert_delivered(folder, expected)
    assert_metrics_are_whole(folder)


def test_a_model_that_has_no_room_is_kept_as_a_checkpoint(
    recipe: Recipe,
    cpu: Runtime,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    expected: dict[str, torch.Tensor],
) -> None:
    def refuse(*_: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    folder = tmp_path / "run"
    with monkeypatch.context() as full:
        full.setattr(weights, "save_file", refuse)
        told = r"The checkpoint of step 12 of 12 is in .*: free some disk space and run"
        with pytest.raises(UserError, match=told):
            train(recipe, folder=folder, runtime=cpu, quiet=True)
    assert checkpoints(folder / "last")[0].name == "step-000000012"
    assert train(recipe, folder=folder, runtime=cpu, quiet=True).finished
    assert_delivered(folder, expected)
    assert_metrics_are_whole(folder)  # the last evaluation is done again


@pytest.fixture
def full_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[int], None]:
    """Lets the run's folder take no model for so many tries; another has room."""
    save, tries = weights.save_file, [0]

    def write(state: Any, file: Path, *arguments: Any) -> None:
        if Path(file).parent == tmp_path / "run":
            tries[0] -= 1
            if tries[0] >= 0:
                raise OSError(28, "No space left on device")
        save(state, file, *arguments)

    monkeypatch.setattr(weights, "save_file", write)
    monkeypatch.setattr(model_saver, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(model_saver, "fallback_folders", lambda: [tmp_path])

    def full(num_tries: int) -> None:
        tries[0] = num_tries

    return full


def test_a_model_that_has_no_room_is_saved_where_there_is_some(
    tiny: Tiny,
    cpu: Runtime,
    tmp_path: Path,
    full_folder: Callable[[int], None],
) -> None:
    recipe = tiny(epochs=1)
    (tmp_path / "run.safetensors").write_text("another's")
    full_folder(1000)
    with pytest.raises(UserError) as caught:
        train(recipe, folder=tmp_path / "run", runtime=cpu, quiet=True)
    saved = tmp_path / "run-2.safetensors"
    assert f"The model is saved in {saved}." in str(caught.value)
    assert "The checkpoint of step 3 of 3 is in" in str(caught.value)
    assert load_trained(saved).class_names == ("a", "b", "c")
    assert (tmp_path / "run.safetensors").read_text() == "another's"
    full_folder(0)
    assert train(recipe, folder=tmp_path / "run", runtime=cpu, quiet=True).finished
    own = load_file(tmp_path / "run" / "model.safetensors")
    assert all(torch.equal(own[key], value) for key, value in load_file(saved).items())


def test_a_finished_run_holds_on_until_there_is_room(
    tiny: Tiny,
    cpu: Runtime,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    full_folder: Callable[[int], None],
) -> None:
    monkeypatch.setattr(model_saver, "WAIT_SECONDS", 60)
    full_folder(4)
    folder = tmp_path / "run"
    assert train(tiny(), folder=folder, runtime=cpu, quiet=True).finished
    full_folder(4)
    recipe = tiny(evaluate_every=4)
    assert train(recipe, folder=folder, runtime=cpu, quiet=True, fresh=True).finished
    said = (folder / "log.txt").read_text()
    assert "cannot be written (" in said
    assert "Retrying for 60 s" in said
    assert f"The model was saved to {folder}/model.safetensors." in said
    assert not (tmp_path / "run.safetensors").exists()
    assert load_trained(folder).class_names == ("a", "b", "c")


def test_a_result_is_tried_again_too(
    tiny: Tiny, cpu: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish, tries = RunFolder.finish, []

    def full(run_folder: RunFolder, result: dict[str, Any]) -> None:
        tries.append(run_folder)
        if len(tries) < 3:
            raise OSError(28, "No space left on device")
        finish(run_folder, result)

    monkeypatch.setattr(RunFolder, "finish", full)
    monkeypatch.setattr(model_saver, "WAIT_SECONDS", 60)
    monkeypatch.setattr(model_saver, "RETRY_SECONDS", 0.01)
    assert train(tiny(epochs=1), folder=tmp_path, runtime=cpu, quiet=True).finished
    assert "free some disk space. Retrying" in (tmp_path / "log.txt").read_text()


def test_numbers_that_have_no_room_are_told_before_a_run_goes_on(
    tiny: Tiny,
    cpu: Runtime,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    interrupt_after: Callable[[int | None], None],
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    interrupt_after(2)
    train(tiny(), folder=tmp_path, runtime=cpu, quiet=True)
    before = (tmp_path / "metrics.jsonl").read_bytes()
    monkeypatch.setattr(metrics, "write_atomically", refuse)
    with pytest.raises(UserError, match=r"cannot be written .*; free some disk space"):
        train(tiny(), folder=tmp_path, runtime=cpu, quiet=True)
    assert (tmp_path / "metrics.jsonl").read_bytes() == before


def test_no_checkpoint_is_promised_where_none_could_be_kept(
    tiny: Tiny, cpu: Runtime, tmp_path: Path, disk: Callable[[range], None]
) -> None:
    disk(range(100))
    with pytest.raises(UserError, match="There is no checkpoint: free some disk space"):
        train(tiny(epochs=1), folder=tmp_path / "run", runtime=cpu, quiet=True)


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
