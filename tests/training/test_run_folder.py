"""Whose a run folder is, and what starting over in it may not delete."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from t2t.config import to_json
from t2t.errors import UserError
from t2t.training.distributed import World
from t2t.training.logging.run_logger import RunLogger
from t2t.training.recipe import Recipe
from t2t.training.run_files import ALL_FILES, RECIPE, RESULT, remove_files, write_json
from t2t.training.run_folder import RunFolder
from t2t.training.saved_run import RESULT_TYPES
from t2t.training.train import train
from t2t.user_code import LOADED, load_code, unload


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recipe:
    """Of images that lie beside the runs, named from where one stands."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    return Recipe(name="own", model="t2t_vit_7_32", data="photos", epochs=30)


def begun(recipe: Recipe) -> RunFolder:
    """A run folder in which something came of a recipe."""
    run_folder = RunFolder(Path("runs/own"))
    run_folder.checkpoints.mkdir(parents=True)
    write_json(run_folder.path / RECIPE, to_json(recipe))
    return run_folder


def test_data_may_be_spelled_otherwise(recipe: Recipe, tmp_path: Path) -> None:
    run_folder = begun(recipe)
    for spelled in ("photos/", "./photos", str(tmp_path / "photos")):
        run_folder.check(replace(recipe, data=spelled), fresh=False)
    (tmp_path / "others").mkdir()
    with pytest.raises(UserError, match=r'\(data: "photos" → "others"\)'):
        run_folder.check(replace(recipe, data="others"), fresh=False)


def test_a_name_that_is_no_text_is_refused_or_escaped(recipe: Recipe) -> None:
    with (
        pytest.raises(UserError, match="is not UTF-8, and no model can be written"),
        RunFolder(Path("runs/\udce9")).hold(),
    ):
        pass
    assert not Path("runs").exists()
    with pytest.raises(UserError, match=r"cannot be written \(File name too long\)"):
        train(recipe, folder="~nobody-of-this-name/" + 300 * "a", quiet=True)
    assert [path.name for path in Path().iterdir()] == ["photos"]
    run_folder = begun(recipe)
    world = World(0, 1, torch.device("cpu"))
    with RunLogger(run_folder, recipe, world, quiet=True) as logger:
        logger.warn("photos/\udce9.jpg is skipped.")
    assert run_folder.log.read_text() == "photos/\\udce9.jpg is skipped.\n"


@pytest.mark.parametrize("name", [RECIPE, RESULT])
def test_a_file_that_is_not_a_runs_own_is_named(recipe: Recipe, name: str) -> None:
    run_folder = begun(recipe)
    (run_folder.path / name).write_text("[]")
    with pytest.raises(UserError, match=f"{name} should hold a JSON object, and holds"):
        train(recipe, folder=run_folder.path, quiet=True)


@pytest.mark.parametrize(
    ("changes", "reported"),
    [
        ({"top1": "high"}, "its 'top1' should be a number and is \"high\""),
        ({"parameters": 2.5}, "its 'parameters' should be a whole number and is 2.5"),
        ({"skipped_steps": True}, "'skipped_steps' should be a whole number and is tr"),
        ({"command": ["t2t"]}, "its 'command' should be a text and is"),
    ],
)
def test_a_result_that_was_changed_is_named(
    recipe: Recipe, changes: dict[str, object], reported: str
) -> None:
    run_folder = begun(recipe)
    whole = {key: kind(1) for key, kind in RESULT_TYPES.items()}
    whole |= {"metric": "top1", "top1": 1.0, "top1_raw": 1.0}
    write_json(run_folder.path / RESULT, {**whole, "top1": 80})
    save_file({"x": torch.zeros(1)}, run_folder.model)
    assert train(recipe, folder=run_folder.path, quiet=True).summary["top1"] == 80
    write_json(run_folder.path / RESULT, whole | changes)
    with pytest.raises(
        UserError, match=f"{RESULT} was changed or damaged: .*{reported}"
    ):
        train(recipe, folder=run_folder.path, quiet=True)
    write_json(run_folder.path / RESULT, {})
    with pytest.raises(UserError, match=f"{RESULT} was .* is missing; correct it"):
        train(recipe, folder=run_folder.path, quiet=True)


def test_what_matters_most_is_reported_first(recipe: Recipe) -> None:
    run_folder = begun(recipe)
    other = replace(
        recipe, data="digits", model="t2t_vit_14", seed=1, light_augment_share=0.5
    )
    with pytest.raises(UserError) as refused:
        run_folder.check(replace(other, epochs=20, batch_size=8), fresh=False)
    assert (
        'recipe (model: "t2t_vit_7_32" → "t2t_vit_14"; data: "photos" → "digits"; '
        "epochs: 30 → 20; batch_size: 512 → 8 and 2 more); name"
    ) in str(refused.value)


@pytest.mark.parametrize(
    "needed",
    [
        {"weights": "runs/own"},
        {"weights": "runs/own/model.safetensors"},
        {"task": "distill_soft", "task_args": {"teacher": "runs/own"}},
        {"data": "runs/own"},
    ],
)
def test_starting_over_spares_what_the_run_begins_with(
    recipe: Recipe, needed: dict[str, str]
) -> None:
    run_folder = begun(recipe)
    run_folder.model.touch()
    (run_folder.path / "photos").mkdir()
    with pytest.raises(UserError, match="--fresh would delete runs/own"):
        run_folder.check(replace(recipe, **needed), fresh=True)  # type: ignore[arg-type]
    nobody = {"weights": "~nobody-of-this-name/own"}
    inside = {"data": "runs/own/photos"}  # which no run wrote
    for spared in ({"weights": "builtin"}, {"data": "digits"}, inside, nobody, {}):
        run_folder.check(replace(recipe, **spared), fresh=True)  # type: ignore[arg-type]


def test_starting_over_removes_only_what_a_run_wrote(recipe: Recipe) -> None:
    run_folder = begun(recipe)
    hexadecimal = 32 * "a"
    own = [
        *("model.safetensors", "best.safetensors"),
        *("metrics.jsonl", "result.json", "curves.png"),
        *(
            "log.txt",
            "environment.json",
            ".wandb-id",
            "wandb/run-1/x",
            "wandb/debug.log",
        ),
        *("tensorboard/events.out.tfevents.1.host", "last/step-000000003/numbers.json"),
        *("last/damaged-step-000000002/x", "last/.writing-000000004/x"),
        f".model.safetensors.{hexadecimal}.part",
    ]
    others = [
        *("notes.md", "photos/a/1.png", ".hidden", "last/best/model.safetensors"),
        *("last/step-best/x", "tensorboard/mine.txt", "mine.safetensors"),
        *("model.safetensors.bak", f".notes.md.{hexadecimal}.part"),
    ]
    for name in own + others:
        (run_folder.path / name).parent.mkdir(parents=True, exist_ok=True)
        (run_folder.path / name).write_text("x")
    (run_folder.path / "wandb/latest-run").symlink_to("run-1")
    remove_files(run_folder.path, ALL_FILES)
    files = [path for path in run_folder.path.rglob("*") if not path.is_dir()]
    assert {str(path.relative_to(run_folder.path)) for path in files} == {*others}
    assert not (run_folder.path / "wandb").exists()


def test_the_end_of_a_run_removes_only_its_checkpoints(recipe: Recipe) -> None:
    run_folder = begun(recipe)
    for name in ("step-000000003", "best"):
        (run_folder.checkpoints / name).mkdir()
    run_folder.finish({})
    assert [path.name for path in run_folder.checkpoints.iterdir()] == ["best"]


def test_drafts_of_a_killed_process_are_removed(recipe: Recipe, tmp_path: Path) -> None:
    run_folder = begun(recipe)
    part = run_folder.path / f".model.safetensors.{32 * 'b'}.part"
    part.touch()
    with pytest.raises(UserError, match="photos"):  # which are none
        train(recipe, folder=run_folder.path, quiet=True)
    assert not part.exists()


def test_of_two_files_of_one_name_the_first_is_kept(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("T2T_CACHE", str(tmp_path / "cache"))
    run_folder = begun(recipe)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine.py").write_text(f"name = {name!r}")
        load_code(tmp_path / name / "mine.py")
    run_folder.write_code()
    assert (run_folder.path / "code" / "mine.py").read_text() == "name = 'one'"
    for code in [*LOADED]:
        unload(code)
