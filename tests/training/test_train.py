"""The loop as a whole: what a run leaves, and what it says when reported to stop."""

import json
import os
import time
from contextlib import redirect_stdout, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from t2t.data.sources import open_splits
from t2t.errors import LocalError, UserError
from t2t.models.weights import load_with_report
from t2t.recipes.digits import t2t_vit
from t2t.training import model_saver, trainer
from t2t.training import train as train_module
from t2t.training.checkpoint_files import checkpoints
from t2t.training.checkpoint_writer import CheckpointWriter
from t2t.training.evaluation.evaluate import score_models
from t2t.training.logging import metrics_log, run_logger
from t2t.training.logging.clock import Clock
from t2t.training.logging.messages import Messages
from t2t.training.logging.metrics import read_rows
from t2t.training.logging.progress import RemainingTime
from t2t.training.logging.run_logger import RunLogger
from t2t.training.recipe import CropConfig, Recipe, Schedule, TokenDropping
from t2t.training.run_folder import RunFolder
from t2t.training.runtime import Runtime
from t2t.training.state import Snapshot
from t2t.training.step import Stepper
from t2t.training.stop_signals import StopSignals
from t2t.training.train import train


def tiny() -> Recipe:
    """A digits run of two short epochs."""
    model_args = {"dim": 16, "depth": 1, "num_heads": 1, "token_dim": 8}
    recipe = t2t_vit()
    return replace(
        recipe,
        model_args=recipe.model_args | model_args,
        epochs=2,
        batch_size=512,
        schedule=Schedule(warmup_epochs=0),
    )


def test_a_short_run_has_curves_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_logger, "NUM_ROWS", 5)
    monkeypatch.setattr(run_logger, "LOG_EVERY_SECONDS", 1e9)
    recipe = replace(tiny(), epochs=10, evaluate_every=10, batch_size=700)
    train(recipe, folder=tmp_path / "run", quiet=True)
    steps = {row["step"] for row in read_rows(tmp_path / "run/metrics.jsonl")}
    assert steps - {1} == {4, 8, 12, 16, 20}


def test_a_run_leaves_all_that_its_model_needs(tmp_path: Path) -> None:
    recipe = replace(tiny(), crop=CropConfig(evaluation_fraction=0.9), seed=2)
    result = train(recipe, folder=tmp_path / "run", quiet=True)
    assert result.finished
    files = {path.name for path in (tmp_path / "run").iterdir()}
    assert {"recipe.json", "environment.json", "metrics.jsonl", "curves.png"} <= files
    rows = [
        json.loads(line)
        for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    ]
    scored = [row for row in rows if "top1" in row]
    assert [row["epoch"] for row in scored] == [1, 2]
    assert all("top1_raw" in row for row in scored)
    model, report = load_with_report(tmp_path / "run")
    assert report.class_names == tuple("0123456789")
    assert report.extra == {
        "image_size": [8, 8],
        "channels": 1,
        "mean": list(recipe.augmentation.mean),
        "std": list(recipe.augmentation.std),
        "crop_fraction": 0.9,
        "data": "digits",
        "seed": 2,
        "evaluated_on": open_splits(recipe.data).val.fingerprint(),
    }
    assert model(torch.zeros(1, 1, 8, 8)).shape == (1, 10)


def test_no_more_images_are_evaluated_at_once_than_a_device_computes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged = []

    def noting(task: Any, models: Any, batches: Any, *arguments: Any) -> Any:
        judged.extend([len(batch.images) for batch in batches])
        return score_models(task, models, batches, *arguments)

    monkeypatch.setattr(trainer, "score_models", noting)
    runtime = Runtime(device="cpu", compile="off", micro_batch=100)
    recipe = replace(tiny(), epochs=1)
    train(recipe, folder=tmp_path / "run", runtime=runtime, quiet=True)
    assert judged == [100] * 4  # 360 images, once for the raw weights and the EMA


@pytest.mark.parametrize(("every", "steps"), [(60.0, [4]), (0.0, [2, 4])])
def test_curves_are_drawn_at_the_end_and_now_and_then(
    every: float, steps: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = []

    def draw(rows: list[dict[str, Any]], *_: Any) -> None:
        # The model is saved already: drawing takes seconds.
        assert (tmp_path / "run" / "model.safetensors").exists()
        drawn.append(rows[-1]["step"])

    monkeypatch.setattr(run_logger, "DRAW_EVERY_SECONDS", every)
    monkeypatch.setattr(metrics_log, "draw_curves", draw)
    train(tiny(), folder=tmp_path / "run", quiet=True)
    assert drawn == steps


def test_a_stop_during_a_step_is_reported_without_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = StopSignals()
    monkeypatch.setattr(train_module, "StopSignals", lambda: stop)

    def broken(*_: object) -> None:
        stop.received = True
        raise RuntimeError("the compiler was ended")

    monkeypatch.setattr(Stepper, "start_step", broken)
    result = train(tiny(), folder=tmp_path / "run", quiet=True)
    assert not result.finished


def test_advice_is_given_even_where_a_stop_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = StopSignals()
    monkeypatch.setattr(train_module, "StopSignals", lambda: stop)

    def full(*_: object) -> None:
        stop.received = True
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RunFolder, "finish", full)
    with pytest.raises(UserError, match="Training is done, but its result could not"):
        train(tiny(), folder=tmp_path / "run", quiet=True)


def test_the_time_left_counts_evaluations_once_one_is_timed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recipe = replace(tiny(), epochs=10, evaluate_every=4)
    monkeypatch.setattr(time, "monotonic", iter([0.0, 1.0, 61.0]).__next__)
    remaining, clock = RemainingTime(recipe, 30, 3), Clock()
    clock.skip_warmup()
    clock.step()
    left = lambda step: remaining.speed_and_time_left(clock, step)  # noqa: E731
    assert left(12) == "512 images/s  18 s left"
    clock.end_evaluation()
    # After the fourth epoch come those after the eighth and the tenth.
    assert left(13) == "512 images/s  2 min 17 s left"
    assert left(24).endswith("2 min 06 s left")
    assert left(25).endswith("65 s left")


def test_the_time_left_knows_that_steps_on_all_tokens_take_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    token_dropping = TokenDropping(keep=0.6, until=0.5)
    recipe = replace(
        tiny(), epochs=10, token_dropping=token_dropping, light_augment_share=0.1
    )
    monkeypatch.setattr(time, "monotonic", iter([0.0, 0.7]).__next__)
    remaining, clock = RemainingTime(recipe, 100, 10), Clock()
    clock.skip_warmup()
    clock.step()
    left = lambda step: remaining.speed_and_time_left(clock, step)  # noqa: E731
    # A step takes 0.7 s now and 1 s on all tokens.
    assert left(20).endswith("  71 s left")
    assert left(50).endswith("  50 s left")
    # The last was one on all tokens, and took 0.7 s.
    assert left(60).endswith("  28 s left")
    assert left(100).endswith("  0 s left")


def test_the_steps_of_another_phase_are_timed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cooled: list[int] = []
    monkeypatch.setattr(
        Clock, "restart_warmup", lambda clock: cooled.append(clock.num_warm)
    )
    recipe = replace(tiny(), token_dropping=TokenDropping(keep=0.5, until=0.5))
    runtime = Runtime(device="cpu", workers=1)
    steps = train(recipe, folder=tmp_path, runtime=runtime, quiet=True).summary["steps"]
    assert steps > 1
    assert cooled == [-(-steps // 2)]


def test_writing_a_model_is_no_time_of_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, now, late = model_saver.save, time.monotonic, [0.0]

    def slowly(*arguments: Any, **options: Any) -> Path:
        late[0] += 1000
        return write(*arguments, **options)

    monkeypatch.setattr(model_saver, "save", slowly)
    monkeypatch.setattr(time, "monotonic", lambda: now() + late[0])
    runtime = Runtime(device="cpu", compile="off")
    train(tiny(), folder=tmp_path / "run", runtime=runtime, quiet=True)
    rows = read_rows(tmp_path / "run" / "metrics.jsonl")
    first, second = (row["train_seconds"] for row in rows if "top1" in row)
    assert second - first < 1000


def test_checkpoints_are_written_every_few_minutes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, now, late = Stepper.start_step, time.monotonic, [0.0]
    saved = []

    def slowly(*arguments: Any) -> Any:
        late[0] += 40
        return begin(*arguments)

    def note(writer: CheckpointWriter, state: Snapshot) -> None:
        saved.append(state.numbers["step"])

    monkeypatch.setattr(Stepper, "start_step", slowly)
    monkeypatch.setattr(time, "monotonic", lambda: now() + late[0])
    monkeypatch.setattr(CheckpointWriter, "save", note)
    runtime = Runtime(device="cpu", compile="off", checkpoint_minutes=1)
    recipe = replace(tiny(), epochs=3, evaluate_every=3)
    train(recipe, folder=tmp_path / "run", runtime=runtime, quiet=True)
    assert saved == [2, 4]


def test_a_run_resumes_where_nothing_can_be_printed(tmp_path: Path) -> None:
    # Closing it would try to write once more.
    with suppress(OSError), open("/dev/full", "w") as full, redirect_stdout(full):
        result = train(tiny(), folder=tmp_path / "run")
        assert result.finished
        assert "epoch 2/2" in (tmp_path / "run" / "log.txt").read_text()
    assert (tmp_path / "run" / "result.json").exists()


def test_a_run_whose_reader_has_gone_stops_with_a_checkpoint(tmp_path: Path) -> None:
    # As Ctrl-C ends `tee` too in `t2t train | tee log`.
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as pipe, redirect_stdout(pipe):
        result = train(tiny(), folder=tmp_path / "run")
    assert not result.finished
    assert [path.name for path in checkpoints(tmp_path / "run" / "last")] == [
        "step-000000001"
    ]
    said = (tmp_path / "run" / "log.txt").read_text()
    assert "Stopped at step 1 of 4 with a checkpoint" in said


def test_an_error_of_its_own_is_not_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a fault")

    monkeypatch.setattr(Stepper, "start_step", broken)
    with pytest.raises(RuntimeError, match="a fault"):
        train(tiny(), folder=tmp_path / "run", quiet=True)


def test_short_memory_is_reported_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(Stepper, "start_step", broken)
    for number in (None, 4096):
        runtime = Runtime(micro_batch=number)
        with pytest.raises(LocalError, match="512 images at once: add --micro-batch"):
            train(tiny(), folder=tmp_path / "run", runtime=runtime, quiet=True)


def test_a_run_refused_at_once_leaves_its_folder_free(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="A batch of 5000 is more than the 1437 images"):
        train(replace(tiny(), batch_size=5000), folder=tmp_path / "new/run", quiet=True)
    assert not (tmp_path / "new").exists()
    assert train(tiny(), folder=tmp_path / "run", quiet=True).finished


def test_a_result_that_has_no_room_is_reported_as_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RunFolder, "finish", full)
    reported = (
        r"not be written: \S+run \(No space left on device\)\. The model is saved in"
    )
    with pytest.raises(UserError, match=reported):
        train(tiny(), folder=tmp_path / "run", quiet=True)


def test_damaged_images_are_named_while_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for label in ("a", "b"):
        (tmp_path / "images" / label).mkdir(parents=True)
        for number in range(8):
            pixels = np.full((8, 8), 20 * number + 100 * (label == "b"), np.uint8)
            Image.fromarray(pixels).save(tmp_path / "images" / label / f"{number}.png")
    for number in range(4):
        (tmp_path / "images" / "a" / f"cut{number}.png").write_bytes(b"\x89PNG\r\n")
    recipe = replace(tiny(), data=str(tmp_path / "images"), batch_size=4)
    assert train(recipe, folder=tmp_path / "run").finished
    reported = capsys.readouterr().out
    assert "cut" in reported
    assert "skipped" in reported


def test_what_was_said_is_kept_and_a_finished_run_is_left_as_it_is(
    tmp_path: Path, cpu: Runtime
) -> None:
    recipe = tiny()
    train(recipe, folder=tmp_path, runtime=cpu, quiet=True)
    log = (tmp_path / "log.txt").read_text().splitlines()
    assert log[0].startswith("digits.t2t_vit: t2t_vit_7_32, ")
    assert sum("top-1" in line and "validation loss" in line for line in log) == 2
    run_folder = tmp_path / "environment.json"
    run_folder.write_text(run_folder.read_text().replace("cpu", "another machine"))
    kept = run_folder.read_text()
    train(recipe, folder=tmp_path, runtime=cpu, quiet=True)
    assert run_folder.read_text() == kept
    assert (tmp_path / "log.txt").read_text().splitlines() == log


def test_names_with_brackets_are_reported_as_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run[bold][/b]"
    assert train(tiny(), folder=folder).finished
    assert f"Folder: {folder}\n" in capsys.readouterr().out
    assert f"Folder: {folder}\n" in (folder / "log.txt").read_text()


def test_a_folder_of_folders_of_classes_is_recognised(tmp_path: Path) -> None:
    for name in ("a", "b"):
        inner = tmp_path / "outer" / "inner" / name
        inner.mkdir(parents=True)
        for number in range(3):
            Image.new("RGB", (8, 8)).save(inner / f"{number}.png")
    with pytest.raises(UserError, match=r"one class only .*Did you mean .*inner\?"):
        train(tiny(), data=tmp_path / "outer", folder=tmp_path / "run", quiet=True)


def test_the_progress_bar_keeps_up_with_the_lines_above_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []
    begin = RunLogger.start

    def start(self: RunLogger, *arguments: Any) -> None:
        begin(self, *arguments)
        update = lambda step, text: shown.append(text)  # noqa: E731
        self.bar = SimpleNamespace(update=update, stop=lambda: None)  # type: ignore[assignment]

    info = Messages.info

    def hear(self: Messages, *words: str | tuple[str, str]) -> None:
        if "top-1" in str(words[0]):
            shown.append(str(words[0]))
        info(self, *words)

    monkeypatch.setattr(RunLogger, "start", start)
    monkeypatch.setattr(Messages, "info", hear)
    train(replace(tiny(), epochs=3), folder=tmp_path, quiet=True)
    for line, before in zip(shown[1:], shown, strict=False):
        if line.endswith("top-1 "):
            assert before.startswith(f"epoch {line.split('/')[0].split()[1]}.0/3")
            assert "top-1" in before


def test_an_unknown_augmentation_is_refused_before_anything_is_written(
    tmp_path: Path,
) -> None:
    recipe = tiny()
    augmentation = replace(
        recipe.augmentation, rand_augment="rand-m9", rand_augment_operations=("invrt",)
    )
    recipe = replace(recipe, augmentation=augmentation)
    with pytest.raises(UserError, match=r"invrt.*invert"):
        train(recipe, folder=tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()
