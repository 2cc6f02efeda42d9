"""A full disk: training continues, and its model is saved."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from run_assertions import assert_metrics_are_whole, assert_model_saved
from safetensors.torch import load_file

from t2t.errors import UserError
from t2t.models.checkpoint_io import checksum as weights  # which writes them
from t2t.models.trained import load_trained
from t2t.training import model_saver, retry_write, trainer
from t2t.training.checkpoint_files import checkpoints
from t2t.training.initial_state import new_state
from t2t.training.logging import metrics
from t2t.training.recipe import Recipe
from t2t.training.run_folder import RunFolder
from t2t.training.runtime import Runtime
from t2t.training.state import TrainState
from t2t.training.train import train

Tiny = Callable[..., Recipe]


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

    monkeypatch.setattr(trainer, "new_state", remember)
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
    reported = "".join(capsys.readouterr().out.split())  # lines break anywhere
    for sentence in (
        "training continues, and would resume from",
        "times; now it works again.",
        "model.safetensors could not be written",
    ):
        assert sentence.replace(" ", "") in reported
    assert_model_saved(tmp_path / "run", expected)


def test_no_checkpoint_is_claimed_that_a_full_disk_did_not_take(
    tiny: Tiny,
    cpu: Runtime,
    tmp_path: Path,
    disk: Callable[[range], None],
    interrupt_after: Callable[[int | None], None],
) -> None:
    disk(range(5, 6))
    for number, words in (
        (4, " with a checkpoint; run"),
        (1, "; the last checkpoint could not"),
    ):
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
    assert_model_saved(folder, expected)
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
        reported = (
            r"The checkpoint of step 12 of 12 is in .*: free some disk space and run"
        )
        with pytest.raises(UserError, match=reported):
            train(recipe, folder=folder, runtime=cpu, quiet=True)
    assert checkpoints(folder / "last")[0].name == "step-000000012"
    assert train(recipe, folder=folder, runtime=cpu, quiet=True).finished
    assert_model_saved(folder, expected)
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
    monkeypatch.setattr(retry_write, "RETRY_SECONDS", 0.01)
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
    monkeypatch.setattr(retry_write, "WAIT_SECONDS", 60)
    full_folder(4)
    folder = tmp_path / "run"
    assert train(tiny(), folder=folder, runtime=cpu, quiet=True).finished
    full_folder(4)
    recipe = tiny(evaluate_every=4)
    assert train(recipe, folder=folder, runtime=cpu, quiet=True, fresh=True).finished
    said = (folder / "log.txt").read_text()
    assert (
        f"{folder} cannot be written (No space left on device): free some disk space. "
        "Retrying for 60 s; Ctrl-C stops."
    ) in said
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
    monkeypatch.setattr(retry_write, "WAIT_SECONDS", 60)
    monkeypatch.setattr(retry_write, "RETRY_SECONDS", 0.01)
    assert train(tiny(epochs=1), folder=tmp_path, runtime=cpu, quiet=True).finished
    assert "free some disk space. Retrying" in (tmp_path / "log.txt").read_text()


def test_numbers_that_have_no_room_are_reported_before_a_run_resumes(
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
