"""Any task trains: own modules, several views, no labels, resumed and shared."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from example_tasks import Masked, TwoViews
from PIL import Image

from t2t.cli import main
from t2t.errors import UserError
from t2t.models.weights import load
from t2t.recipes.open_recipe import UNNAMED, open_recipe
from t2t.tasks import TASKS, register_task
from t2t.training.checkpoint_files import checkpoints
from t2t.training.distributed import World
from t2t.training.forecast.estimate import estimate
from t2t.training.initial_state import new_state
from t2t.training.logging.metrics import read_rows
from t2t.training.recipe import CropConfig, OptimizerConfig, Recipe
from t2t.training.runtime import Runtime, resolve_runtime
from t2t.training.step import Stepper
from t2t.training.train import train

Tiny = Callable[..., Recipe]
NAMES = ["test_two_views", "test_masked", "masked_patches", "masked_autoencoder"]
ALONE = World(0, 1, torch.device("cpu"))
TIMES = {"images_per_second", "train_seconds", "compile_seconds"}


@pytest.fixture(scope="module")
def flat(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The images without their classes, in one folder."""
    folder = tmp_path_factory.mktemp("flat")
    for number, path in enumerate(sorted(images.rglob("*.png"))):
        shutil.copy(path, folder / f"{number}.png")
    return folder


def without_times(folder: Path) -> list[dict[str, Any]]:
    rows = read_rows(folder / "metrics.jsonl")
    return [{k: v for k, v in row.items() if k not in TIMES} for row in rows]


def unlabelled(tiny: Tiny, name: str, flat: Path) -> Recipe:
    crop = CropConfig(kind="random", scale=(0.5, 1.0))
    recipe = tiny(random=True, task=name, data=str(flat), crop=crop)
    light = replace(recipe.augmentation, mixup=0.0, cutmix=0.0, smoothing=0.0)
    return replace(recipe, augmentation=light, drop_path=0.0)


@pytest.mark.parametrize(
    ("name", "optimizer"), [*zip(NAMES, ("muon", "adamw") * 2, strict=True)]
)
def test_a_run_without_labels_resumes_bit_for_bit(
    name: str,
    optimizer: str,
    tiny: Tiny,
    cpu: Runtime,
    flat: Path,
    tmp_path: Path,
    interrupt_after: Callable[[int | None], None],
) -> None:
    recipe = unlabelled(tiny, name, flat)
    recipe = replace(recipe, optimizer=OptimizerConfig(name=optimizer, lr=1e-2))
    whole = train(recipe, folder=tmp_path / "whole", runtime=cpu, quiet=True)
    interrupt_after(5)
    stopped = train(recipe, folder=tmp_path / "parts", runtime=cpu, quiet=True)
    assert not stopped.finished
    held = json.loads(
        (checkpoints(tmp_path / "parts" / "last")[0] / "numbers.json").read_text()
    )
    assert held["data"]["classes"] == []
    interrupt_after(None)
    parts = train(recipe, folder=tmp_path / "parts", runtime=cpu, quiet=True)
    assert parts.finished
    assert without_times(tmp_path / "parts") == without_times(tmp_path / "whole")
    files = [tmp_path / each / "model.safetensors" for each in ("whole", "parts")]
    assert files[0].read_bytes() == files[1].read_bytes()
    metric = TASKS[name].metrics[0].name
    assert whole.summary["metric"] == metric
    assert "top1" not in whole.summary
    assert isinstance(whole.summary[metric], float)
    last = [row for row in read_rows(tmp_path / "whole/metrics.jsonl") if "lr" in row][
        -1
    ]
    assert ("likeness" in last) == (name == "test_two_views")
    assert load(files[0]).num_classes == 0


def state_of(recipe: Recipe, runtime: Runtime) -> tuple[Stepper, Any]:
    runtime = resolve_runtime(runtime, ALONE)
    state = new_state(recipe, runtime, ALONE, 0)
    return Stepper(recipe, runtime, ALONE, state), state


def test_the_state_holds_all_of_a_task(tiny: Tiny, cpu: Runtime, flat: Path) -> None:
    recipe = unlabelled(tiny, "test_two_views", flat)
    _, state = state_of(recipe, cpu)
    task = state.task
    assert isinstance(task, TwoViews)
    names = state.weights().keys()
    for expected in (
        "model/norm.weight",
        "ema/norm.weight",
        "task.projector/0.weight",
        "task.predictor/weight",
        "task.teacher/model.norm.weight",
        "task/centre",
    ):
        assert expected in names
    assert not any("progress" in name for name in names)
    trained = {
        id(parameter)
        for optimizer in state.optimizers
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    assert {id(p) for p in task.predictor.parameters()} <= trained
    assert not trained & {id(p) for p in task.teacher.parameters()}


def test_a_step_that_is_not_finite_leaves_the_teacher_alone(
    tiny: Tiny, cpu: Runtime, flat: Path
) -> None:
    from t2t.training.forecast.random_batch import random_batch

    recipe = unlabelled(tiny, "test_two_views", flat)
    stepper, state = state_of(recipe, cpu)
    batch = random_batch(recipe, 16, state.task)
    assert len(batch.views) == 2
    assert stepper.train_step(batch, 0.5).applied
    before = {name: value.clone() for name, value in state.weights().items()}
    plain = stepper.forward_backward.forward

    def broken(views: Any) -> Any:
        return {"loss": plain(views)["loss"] * float("nan")}

    stepper.forward_backward.forward = broken
    assert not stepper.train_step(batch, 0.5).applied
    assert all(
        torch.equal(value, before[key]) for key, value in state.weights().items()
    )
    stepper.forward_backward.forward = plain
    assert stepper.train_step(batch, 0.5).applied
    after = state.weights()
    assert not torch.equal(after["task/centre"], before["task/centre"])
    changed = "task.teacher/model.norm.weight"
    assert not torch.equal(after[changed], before[changed])


@pytest.mark.parametrize("name", NAMES)
def test_micro_batches_take_the_same_step(
    name: str, tiny: Tiny, cpu: Runtime, flat: Path
) -> None:
    from t2t.training.forecast.random_batch import random_batch

    recipe = unlabelled(tiny, name, flat)
    recipe = replace(recipe, model_args={**recipe.model_args, "token_dropout": 0.0})
    found = []
    for size in (None, 4):
        stepper, state = state_of(recipe, replace(cpu, micro_batch=size))
        if isinstance(state.task, TwoViews):  # batch norms see one part at a time
            state.task.projector[1] = torch.nn.Identity()
            state.task.teacher["projector"][1] = torch.nn.Identity()
        torch.manual_seed(0)
        batch = random_batch(recipe, 16, state.task)
        found.append(stepper.train_step(batch))
    assert found[0].loss == pytest.approx(found[1].loss, rel=1e-5)
    assert found[0].gradient_norm == pytest.approx(found[1].gradient_norm, rel=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_a_dry_run_needs_no_labels(
    name: str, tiny: Tiny, cpu: Runtime, flat: Path
) -> None:
    page = estimate(unlabelled(tiny, name, flat), cpu)
    assert f"task: {name}" in page
    assert "images/s" in page


def test_labels_are_asked_for_by_tasks_that_need_them(
    tiny: Tiny, cpu: Runtime, flat: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError):
        train(tiny(data=str(flat)), folder=tmp_path / "run", runtime=cpu, quiet=True)
    assert not (tmp_path / "run").exists()


def test_labelled_data_serves_a_task_without_labels(
    tiny: Tiny, cpu: Runtime, images: Path, tmp_path: Path
) -> None:
    recipe = replace(unlabelled(tiny, "test_masked", images), epochs=1)
    assert train(recipe, folder=tmp_path / "run", runtime=cpu, quiet=True).finished


def test_a_pack_without_labels_serves_a_task_without_labels(
    tiny: Tiny, cpu: Runtime, flat: Path, tmp_path: Path, capsys: Any
) -> None:
    packed = tmp_path / "packed"
    assert main(["pack", str(flat), str(packed), "--unlabelled"]) == 0
    assert "--set task=TASK, a task that needs no labels" in capsys.readouterr().out
    recipe = replace(unlabelled(tiny, "test_masked", packed), epochs=1)
    assert train(recipe, folder=tmp_path / "run", runtime=cpu, quiet=True).finished
    with pytest.raises(UserError, match="has no labels: add them, or train with"):
        train(tiny(data=str(packed)), folder=tmp_path / "other", runtime=cpu)


def test_the_default_recipe_needs_no_labels(flat: Path) -> None:
    assert open_recipe(UNNAMED, str(flat)).data == str(flat)


def test_a_name_is_registered_once() -> None:
    assert register_task("test_masked")(Masked) is Masked

    class Other(Masked): ...

    with pytest.raises(UserError, match="'test_masked' is registered already"):
        register_task("test_masked")(Other)
    assert TASKS["test_masked"] is Masked


def test_damaged_images_without_labels_are_skipped(
    tiny: Tiny, cpu: Runtime, flat: Path, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    shutil.copytree(flat, data)
    (data / "7.png").write_bytes(b"no image")
    Image.new("RGB", (9, 9)).save(data / "more.png")
    recipe = replace(unlabelled(tiny, "test_masked", data), epochs=1)
    assert train(recipe, folder=tmp_path / "run", runtime=cpu, quiet=True).finished
    assert "7.png" in (tmp_path / "run" / "log.txt").read_text()


@pytest.mark.cuda
@pytest.mark.parametrize("name", NAMES)
def test_any_task_is_a_cuda_graph_that_resumes_bit_for_bit(
    name: str,
    tiny: Tiny,
    flat: Path,
    tmp_path: Path,
    interrupt_after: Callable[[int | None], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recipe = unlabelled(tiny, name, flat)
    runtime = Runtime(device="cuda", compile="off", workers=1)
    graphs = []
    replay = Stepper.start_step

    def start_step(stepper: Stepper, *given: Any) -> Any:
        pending = replay(stepper, *given)
        graphs.append(stepper.captured is not None and stepper.captured.graph)
        return pending

    monkeypatch.setattr(Stepper, "start_step", start_step)
    train(recipe, folder=tmp_path / "whole", runtime=runtime, quiet=True)
    assert graphs[-1]
    interrupt_after(5)
    train(recipe, folder=tmp_path / "parts", runtime=runtime, quiet=True)
    interrupt_after(None)
    train(recipe, folder=tmp_path / "parts", runtime=runtime, quiet=True)
    assert without_times(tmp_path / "parts") == without_times(tmp_path / "whole")
    files = [tmp_path / each / "model.safetensors" for each in ("whole", "parts")]
    assert files[0].read_bytes() == files[1].read_bytes()
