"""SimCLR, BYOL, MoCo v3 and DINO: their losses, and tiny runs."""

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from t2t.commands.train_summary import train_summary
from t2t.data.crops import CenterCrop, RandomCrop
from t2t.errors import UserError
from t2t.models.weights import load
from t2t.tasks import two_views
from t2t.tasks.byol import BYOL, squared_distance
from t2t.tasks.dino import DINO, entropies
from t2t.tasks.moco_v3 import info_nce
from t2t.tasks.registry import primary_metric
from t2t.tasks.simclr import SimCLR, nt_xent
from t2t.tasks.two_views import feature_std, fixed_views
from t2t.training.distributed import World
from t2t.training.forecast.estimate import estimate
from t2t.training.forecast.random_batch import random_batch
from t2t.training.initial_state import new_state
from t2t.training.logging.metrics import read_rows
from t2t.training.recipe import CropConfig, OptimizerConfig, Recipe
from t2t.training.runtime import Runtime, resolve_runtime
from t2t.training.state import TrainState
from t2t.training.step import Stepper
from t2t.training.train import train

Tiny = Callable[..., Recipe]
NAMES = ["simclr", "byol", "moco_v3", "dino"]
ALONE = World(0, 1, torch.device("cpu"))
TIMES = {"images_per_second", "train_seconds", "compile_seconds"}


def unit(rows: Tensor) -> Tensor:
    return rows / rows.norm(dim=1, keepdim=True)


@pytest.fixture
def pair() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    first, second = torch.randn(2, 6, 5, generator=generator)
    return first, second


def test_simclr_finds_the_other_view_among_all(pair: tuple[Tensor, Tensor]) -> None:
    views = unit(torch.cat(pair))
    expected = []
    for row in range(12):
        cosines = [views[row] @ views[other] / 0.3 for other in range(12)]
        others = [cosines[other].exp() for other in range(12) if other != row]
        expected.append(-(cosines[(row + 6) % 12].exp() / sum(others)).log())
    found = nt_xent(*pair, temperature=0.3)
    both = torch.stack(expected).reshape(2, 6).mean(0)
    torch.testing.assert_close(found, both)


def test_moco_finds_the_key_among_those_of_the_batch(
    pair: tuple[Tensor, Tensor],
) -> None:
    queries, keys = map(unit, pair)
    chances = (queries @ keys.T / 0.3).softmax(1).diagonal()
    torch.testing.assert_close(info_nce(*pair, 0.3), -2 * 0.3 * chances.log())


def test_byol_measures_the_distance_on_the_sphere(pair: tuple[Tensor, Tensor]) -> None:
    expected = (unit(pair[0]) - unit(pair[1])).square().sum(1)
    torch.testing.assert_close(squared_distance(*pair), expected)


def recipe_of(tiny: Tiny, name: str, **changes: Any) -> Recipe:
    """A tiny run on all that is drawn."""
    sizes: dict[str, Any] = {"hidden_dim": 16, "output_dim": 8}
    if name == "dino":
        sizes |= {"num_prototypes": 12, "local_crops": 2}
    recipe = tiny(random=True, task=name, task_args=sizes, batch_size=16)
    augmentation = replace(
        recipe.augmentation,
        jitter_probability=0.8,
        grayscale=(0.2,),
        blur=(0.5, 0.1),
        solarize=(0.0, 0.2),
    )
    crop = CropConfig(kind="random", scale=(0.5, 1.0))
    return replace(recipe, augmentation=augmentation, crop=crop, **changes)


def state_of(
    recipe: Recipe, micro_batch: int | None = None
) -> tuple[Stepper, TrainState]:
    runtime = Runtime(device="cpu", compile="off", micro_batch=micro_batch)
    runtime = resolve_runtime(runtime, ALONE)
    state = new_state(recipe, runtime, ALONE, 3, ("a", "b", "c"))
    return Stepper(recipe, runtime, ALONE, state), state


def test_dino_predicts_the_centred_and_sharpened_teacher(tiny: Tiny) -> None:
    recipe = recipe_of(tiny, "dino")
    _, state = state_of(recipe)
    task = state.task.train()
    assert isinstance(task, DINO)
    assert task.centre.running_mean is not None
    task.centre.running_mean.copy_(torch.linspace(-0.1, 0.1, 12))
    centre = task.centre.running_mean.clone()
    task.progress.fill_(0.05)  # half of the warm-up
    taught, students = torch.randn(2, 4, 12), torch.randn(4, 4, 12)
    task.teacher.forward = lambda images: [*taught]  # type: ignore[method-assign]
    task.projector.forward = lambda features, trains: features  # type: ignore[method-assign]
    targets = task.targets([torch.zeros(4, 3, 8, 8)] * 2)
    found = task.cross_entropies([*students], targets)
    expected = torch.zeros(4)
    for row in range(4):
        for one in range(2):
            target = ((taught[one, row] - centre) / 0.055).softmax(0)
            for other in range(4):
                if other != one:
                    student = (students[other, row] / 0.1).log_softmax(0)
                    expected[row] -= (target * student).sum() / 6
    torch.testing.assert_close(found, expected)
    moved = 0.9 * centre + 0.1 * taught.mean((0, 1))
    torch.testing.assert_close(task.centre.running_mean, moved)
    task.progress.fill_(0.5)
    assert task.teacher_temperature() == pytest.approx(0.07)


@pytest.mark.parametrize("name", ["byol", "moco_v3"])
def test_a_view_predicts_the_teacher_of_the_other_view(name: str, tiny: Tiny) -> None:
    _, state = state_of(recipe_of(tiny, name))
    task: Any = state.task
    taught, students = torch.randn(2, 4, 8), torch.randn(2, 4, 8)
    task.teacher.forward = lambda images: [*taught]
    task.projector.forward = lambda features: features.flip(1)
    task.predictor.forward = lambda outputs: outputs.exp()
    predicted = [unit(student.flip(1).exp()) for student in students]
    expected = torch.zeros(4)
    for own, other in ((0, 1), (1, 0)):
        targets = unit(taught[other])
        if name == "byol":
            expected += (predicted[own] - targets).square().sum(1)
        else:
            chances = (predicted[own] @ targets.T / 0.2).softmax(1).diagonal()
            expected -= 2 * 0.2 * chances.log()
    images = [torch.zeros(4, 3, 8, 8)] * 2
    outputs = [task.project(each) for each in students]
    torch.testing.assert_close(task.compare(outputs, images), expected)


def test_numbers_show_a_collapse() -> None:
    assert feature_std(torch.ones(8, 4)) == pytest.approx(0, abs=1e-6)
    spread = feature_std(torch.randn(4000, 16))
    assert spread == pytest.approx(1, abs=0.02)
    uniform, sharp = torch.full((6, 4), 0.25), torch.eye(4)
    assert entropies([uniform]) == pytest.approx(
        {"teacher_entropy": 1.0, "batch_entropy": 1.0}
    )
    assert entropies([sharp, sharp]) == pytest.approx(
        {"teacher_entropy": 0.0, "batch_entropy": 1.0}
    )
    assert SimCLR.warning({"feature_std": 0.001}, 0.05) == ""
    assert SimCLR.warning({"feature_std": 0.3}, 0.5) == ""
    assert "features have collapsed" in SimCLR.warning({"feature_std": 0.001}, 0.5)
    collapsed = {"feature_std": 0.3, "output_std": 0.001}
    assert "outputs have collapsed" in BYOL.warning(collapsed, 0.5)
    fine = {"feature_std": 0.5, "teacher_entropy": 0.4, "batch_entropy": 0.8}
    assert DINO.warning(fine, 0.5) == ""
    assert "uniform" in DINO.warning({**fine, "teacher_entropy": 0.9995}, 0.5)
    assert "same prototype" in DINO.warning({**fine, "batch_entropy": 0.001}, 0.5)
    assert DINO.warning({**fine, "batch_entropy": 0.001}, 0.05) == ""


def test_a_collapse_is_logged_once(
    tiny: Tiny, cpu: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(two_views, "feature_std", lambda features: torch.zeros(()))
    recipe = recipe_of(tiny, "byol")
    train(recipe, folder=tmp_path / "run", runtime=cpu, quiet=True)
    log = (tmp_path / "run" / "log.txt").read_text()
    assert log.count("The features have collapsed") == 1


def test_views_are_drawn_apart(tiny: Tiny) -> None:
    crop = RandomCrop(size=(8, 8), scale=(0.5, 1.0))
    task = state_of(recipe_of(tiny, "simclr"))[1].task
    assert task.crops(crop) == (crop, crop)
    args = {"second_scale": (0.2, 0.4)}
    task = state_of(recipe_of(tiny, "simclr", task_args=args))[1].task
    assert [each.scale for each in task.crops(crop)] == [(0.5, 1.0), (0.2, 0.4)]  # type: ignore[union-attr]
    assert isinstance(task.crops(CenterCrop(size=(8, 8)))[1], RandomCrop)
    dino = state_of(recipe_of(tiny, "dino"))[1].task
    assert [each.size for each in dino.crops(crop)] == [(8, 8), (8, 8), (4, 4), (4, 4)]
    left, right = fixed_views(torch.arange(64.0).reshape(1, 1, 8, 8))
    assert left.shape == right.shape == (1, 1, 8, 8)
    assert (right > left).all()


def without_times(folder: Path) -> list[dict[str, Any]]:
    rows = read_rows(folder / "metrics.jsonl")
    return [{k: v for k, v in row.items() if k not in TIMES} for row in rows]


@pytest.mark.parametrize(
    ("name", "optimizer"),
    [("simclr", "adamw"), ("byol", "muon"), ("moco_v3", "muon"), ("dino", "adamw")],
)
def test_a_run_resumes_bit_for_bit_and_is_fine_tuned(
    name: str,
    optimizer: str,
    tiny: Tiny,
    cpu: Runtime,
    tmp_path: Path,
    interrupt_after: Callable[[int | None], None],
) -> None:
    recipe = recipe_of(tiny, name, optimizer=OptimizerConfig(name=optimizer, lr=1e-2))
    whole = train(recipe, folder=tmp_path / "whole", runtime=cpu, quiet=True)
    interrupt_after(5)
    stopped = train(recipe, folder=tmp_path / "parts", runtime=cpu, quiet=True)
    assert not stopped.finished
    interrupt_after(None)
    assert train(recipe, folder=tmp_path / "parts", runtime=cpu, quiet=True).finished
    assert without_times(tmp_path / "parts") == without_times(tmp_path / "whole")
    files = [tmp_path / each / "model.safetensors" for each in ("whole", "parts")]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert whole.summary["metric"] == "knn_top1"
    assert 0 <= whole.summary["knn_top1"] <= 100
    assert train_summary(tmp_path / "whole", whole.summary) is not None
    assert load(files[0]).num_classes == 0
    tuned = tiny(weights=str(tmp_path / "whole"), epochs=1)
    assert train(tuned, folder=tmp_path / "tuned", runtime=cpu, quiet=True).finished
    assert load(tmp_path / "tuned").num_classes == 3
    log = (tmp_path / "tuned" / "log.txt").read_text()
    assert "Loaded" in log


@pytest.mark.parametrize("name", NAMES)
def test_a_task_learns_without_collapse(name: str, tiny: Tiny) -> None:
    """Images of different colours, shifted and mirrored at every step."""
    sizes: dict[str, Any] = {"hidden_dim": 32, "output_dim": 16}
    num_steps = 40
    if name == "dino":
        num_steps = 80
        sizes |= {"num_prototypes": 32, "local_crops": 1, "warmup_share": 0.0}
        sizes |= {"momentum": 0.9}
    optimizer = OptimizerConfig(lr=3e-3, scaling="none")
    recipe = tiny(task=name, task_args=sizes, optimizer=optimizer, seed=1)
    stepper, state = state_of(recipe)
    batch = random_batch(recipe, 16, state.task)
    generator = torch.Generator().manual_seed(0)
    colours = torch.randint(0, 190, (16, 3, 1, 1), generator=generator)
    noise = torch.randint(0, 64, (16, 3, 8, 8), generator=generator)
    pixels = (colours + noise).to(torch.uint8)
    views = [pixels[:, :, : each.shape[2], : each.shape[3]] for each in batch.views]
    batch = batch._replace(views=tuple(views))
    steps = [stepper.train_step(batch, step / num_steps) for step in range(num_steps)]
    losses = [step.loss for step in steps]
    last = steps[-1].numbers
    if name == "dino":  # less the entropy of what it predicts
        entropies = [step.numbers["teacher_entropy"] for step in steps]
        pairs = zip(losses, entropies, strict=True)
        losses = [loss - math.log(32) * entropy for loss, entropy in pairs]
        assert last["teacher_entropy"] < 0.95
        assert last["batch_entropy"] > 0.5
    assert sum(losses[-5:]) < 0.75 * 5 * losses[0]
    assert last["feature_std"] > 0.4


def test_outputs_collapse_without_a_teacher(tiny: Tiny) -> None:
    """BYOL whose targets are its own outputs, through which gradients flow."""
    sizes = {"hidden_dim": 32, "output_dim": 16}
    optimizer = OptimizerConfig(lr=1e-2, scaling="none")
    stepper, state = state_of(tiny(task="byol", task_args=sizes, optimizer=optimizer))
    task: Any = state.task
    task.project = task.projector
    task.compare = lambda outputs, images: squared_distance(*outputs)
    batch = random_batch(stepper.recipe, 16, task)
    steps = [stepper.train_step(batch, 0.5) for _ in range(150)]
    first, last = steps[0].numbers, steps[-1].numbers
    assert first["output_std"] > 0.1
    assert "outputs have collapsed" in BYOL.warning(last, 0.5)


@pytest.mark.parametrize("name", ["byol", "moco_v3", "dino"])
def test_a_step_that_is_not_finite_leaves_the_teacher_alone(
    name: str, tiny: Tiny
) -> None:
    recipe = recipe_of(tiny, name)
    stepper, state = state_of(recipe)
    batch = random_batch(recipe, 16, state.task)
    assert stepper.train_step(batch, 0.5).applied
    before = {key: value.clone() for key, value in state.weights().items()}
    plain = stepper.forward_backward.forward
    stepper.forward_backward.forward = lambda views: {
        "loss": plain(views)["loss"] * float("nan")
    }
    assert not stepper.train_step(batch, 0.5).applied
    after = state.weights()
    assert all(torch.equal(value, before[key]) for key, value in after.items())
    stepper.forward_backward.forward = plain
    assert stepper.train_step(batch, 0.5).applied
    after = state.weights()
    teacher = [key for key in before if key.startswith("task.teacher/encoder.blocks")]
    assert not any(torch.equal(after[key], before[key]) for key in teacher)
    if name == "dino":
        key = "task.centre/running_mean"
        assert not torch.equal(after[key], before[key])


@pytest.mark.parametrize("name", NAMES)
def test_micro_batches_are_refused_where_they_change_the_loss(
    name: str, tiny: Tiny, cpu: Runtime
) -> None:
    recipe = recipe_of(tiny, name)
    if name in ("simclr", "moco_v3"):
        with pytest.raises(UserError, match=f"task={name} compares all images"):
            state_of(recipe, micro_batch=4)
        with pytest.raises(UserError, match="--micro-batch 4 would change"):
            estimate(recipe, replace(cpu, micro_batch=4))
        state_of(recipe, micro_batch=16)
        return
    stepper, state = state_of(recipe, micro_batch=4)
    assert stepper.train_step(random_batch(recipe, 16, state.task)).applied


@pytest.mark.parametrize("name", NAMES)
def test_images_without_labels_are_scored_by_the_loss(
    name: str, tiny: Tiny, cpu: Runtime, images: Path, tmp_path: Path
) -> None:
    flat = tmp_path / "flat"
    flat.mkdir()
    for number, path in enumerate(sorted(images.rglob("*.png"))):
        shutil.copy(path, flat / f"{number}.png")
    recipe = recipe_of(tiny, name, data=str(flat), epochs=1)
    recipe = replace(recipe, schedule=replace(recipe.schedule, warmup_epochs=0))
    folder = tmp_path / "run"
    summary = train(recipe, folder=folder, runtime=cpu, quiet=True).summary
    assert summary["metric"] == "val_loss"
    assert summary["val_loss"] > 0
    assert "knn_top1" not in summary
    assert train_summary(folder, summary) is not None
    assert json.loads((folder / "result.json").read_text())["metric"] == "val_loss"


@pytest.mark.parametrize("name", ["moco_v3", "dino"])
def test_a_task_is_one_graph(name: str, tiny: Tiny) -> None:
    recipe = recipe_of(tiny, name)
    augmentation = replace(recipe.augmentation, rand_augment=None, erase=0.0)
    one_block = {**recipe.model_args, "depth": 1}
    recipe = replace(recipe, augmentation=augmentation, model_args=one_block)
    if name == "dino":
        sizes = {**recipe.task_args, "local_crops": 1}
        recipe = replace(recipe, task_args=sizes)
    stepper, state = state_of(recipe)
    batch = random_batch(recipe, 16, state.task)
    expected = stepper.train_step(batch, 0.5).loss
    stepper, state = state_of(recipe)
    whole: dict[str, Any] = {"fullgraph": True, "backend": "eager"}
    stepper.augment_batch = torch.compile(stepper.augment_batch, **whole)
    stepper.forward_backward.forward = torch.compile(state.trained, **whole)
    found = stepper.train_step(batch, 0.5).loss
    assert found == pytest.approx(expected, rel=1e-4)


def test_settings_of_tasks_are_checked(tiny: Tiny) -> None:
    for name, args, message in (
        ("simclr", {"temperature": 0.0}, "task_args.temperature"),
        ("byol", {"momentum": 1.5}, "task_args.momentum"),
        ("byol", {"temperature": 0.1}, "has no setting task_args.temperature"),
        ("moco_v3", {"output_dim": 0}, "task_args.output_dim"),
        ("dino", {"local_scale": (0.5, 0.1)}, "task_args.local_scale"),
        ("simclr", {"second_scale": (0.5, 1.5)}, "task_args.second_scale"),
    ):
        with pytest.raises(UserError, match=message):
            state_of(tiny(task=name, task_args=args))


def test_byol_adds_both_views(tiny: Tiny) -> None:
    _, state = state_of(recipe_of(tiny, "byol"))
    task = state.task.eval()
    assert isinstance(task, BYOL)
    pair = torch.randn(2, 4, 3, 8, 8).unbind(0)
    features = [task.model(each) for each in pair]
    found = task.compare([task.project(each) for each in features], pair)
    expected = torch.zeros(4)
    for one, other in ((0, 1), (1, 0)):
        predicted = task.predictor(task.projector(features[one]))
        taught = task.teacher.head(task.teacher.encoder(pair[other]))
        expected += (unit(predicted) - unit(taught)).square().sum(1)
    torch.testing.assert_close(found, expected)


def test_a_finished_run_names_its_primary_metric() -> None:
    assert primary_metric("simclr").name == "knn_top1"
    assert primary_metric("simclr", "val_loss").name == "val_loss"
