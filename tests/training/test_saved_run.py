"""Runs of earlier versions: one sentence says what to do, and their models load."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from t2t.config import to_json
from t2t.errors import UserError
from t2t.training.evaluation.evaluate_model import evaluate_model
from t2t.training.recipe import Recipe
from t2t.training.run_files import ENVIRONMENT, RECIPE, write_json
from t2t.training.runtime import Runtime
from t2t.training.saved_run import find_result, read_recipe
from t2t.training.train import train

Tiny = Callable[..., Recipe]


@pytest.fixture
def old_run(tiny: Tiny, tmp_path: Path) -> Path:
    """The folder of an interrupted run whose recipe has the names of version 0.0.9."""
    fields = to_json(tiny())
    del fields["task"], fields["task_args"]
    fields["choices"] = fields.pop("model_args")
    fields["average"] = fields.pop("ema")
    fields |= {"objective": "classify", "teacher": None, "distillation_weight": 1.0}
    (tmp_path / "old" / "last").mkdir(parents=True)
    write_json(tmp_path / "old" / RECIPE, fields)
    write_json(tmp_path / "old" / ENVIRONMENT, {"t2t": "0.0.9"})
    return tmp_path / "old"


RENAMED = (
    "was written by t2t 0.0.9, and recipe fields have been renamed since "
    "(choices → model_args, average → ema, objective → task, teacher → task_args, "
    "distillation_weight → task_args): "
)


def test_a_run_of_an_earlier_version_is_not_resumed(
    old_run: Path, tiny: Tiny, cpu: Runtime
) -> None:
    before = (old_run / RECIPE).read_text()
    with pytest.raises(UserError) as refused:
        train(tiny(), folder=old_run, runtime=cpu, quiet=True)
    assert str(refused.value) == (
        f"{old_run / RECIPE} {RENAMED}its checkpoints cannot be resumed; name another "
        "--folder, or add --fresh to start over."
    )
    assert (old_run / RECIPE).read_text() == before
    assert train(tiny(epochs=1), folder=old_run, runtime=cpu, quiet=True, fresh=True)
    assert read_recipe(old_run).epochs == 1


def test_the_recipe_of_an_earlier_version_says_what_was_renamed(old_run: Path) -> None:
    expected = f"{RENAMED}rename them in this file, or train again with --fresh."
    with pytest.raises(UserError) as refused:
        read_recipe(old_run)
    assert str(refused.value) == f"{old_run / RECIPE} {expected}"
    write_json(old_run / ENVIRONMENT, {})
    with pytest.raises(UserError, match="was written by an earlier version of t2t, "):
        read_recipe(old_run)


def test_a_model_of_an_earlier_version_is_evaluated(
    tiny: Tiny, cpu: Runtime, tmp_path: Path
) -> None:
    folder = train(tiny(epochs=1), folder=tmp_path, runtime=cpu, quiet=True).folder
    model = folder / "model.safetensors"
    with safe_open(model, "pt") as file:
        metadata = dict(file.metadata())
    del metadata["crc32"]
    (key,) = (key for key, value in metadata.items() if "evaluated_on" in value)
    metadata[key] = metadata[key].replace("evaluated_on", "judged_by")
    assert json.loads(metadata[key])["extra"]["judged_by"]
    save_file(load_file(model), tmp_path / "old.safetensors", metadata)
    report = evaluate_model(tmp_path / "old.safetensors", device="cpu")
    assert report is not None
    assert report.score.num_images == 13


def test_a_damaged_result_says_what_to_do(tmp_path: Path) -> None:
    assert find_result(tmp_path) is None
    (tmp_path / "result.json").write_text('{"recipe": ')
    with pytest.raises(UserError, match=rf"Restore it, or remove {tmp_path} and train"):
        find_result(tmp_path)
