"""A folder that is removed or moved while training."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from run_assertions import assert_model_saved, untimed_rows

from t2t.data.sampler import Batch
from t2t.errors import UserError
from t2t.models.trained import load_trained
from t2t.training import model_saver
from t2t.training.checkpoint_files import checkpoints
from t2t.training.recipe import Recipe
from t2t.training.runtime import Runtime
from t2t.training.step import Stepper
from t2t.training.step_result import PendingStep
from t2t.training.train import train


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


@pytest.mark.parametrize(
    ("harm", "step"),
    [
        *(("removed", step) for step in (5, 8, 12)),
        *(("moved", 8), ("moved", 12), ("emptied", 5), ("unlocked", 8)),
    ],
)
def test_a_folder_that_is_lost_while_training_is_recreated(
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
    assert_model_saved(folder, expected)
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
    assert_model_saved(folder, expected)
    assert untimed_rows(folder) == untimed_rows(uninterrupted)
    assert train(recipe, folder=folder, runtime=cpu, quiet=True).already_finished


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
    ) as reported:
        train(recipe, folder=folder, runtime=cpu, quiet=True)
    assert f"saved to {tmp_path}/run.safetensors." in str(reported.value)
    assert load_trained(tmp_path / "run.safetensors").class_names == ("a", "b", "c")
    assert len([*folder.iterdir()]) == 1
