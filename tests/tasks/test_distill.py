"""The losses: by their formulae, on tensors small enough to check by hand."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.filesystem import FileSystemReader

from t2t.errors import UserError
from t2t.models.create import create_model
from t2t.models.pretrained import read_pretrained
from t2t.models.trained import load_trained
from t2t.models.weights import load, save
from t2t.tasks import Task, TaskContext, build_task, distill
from t2t.tasks.distill import Distill, soft_divergence
from t2t.training.checkpoint_files import checkpoints
from t2t.training.distributed import World, batch_norm_buffers
from t2t.training.initial_state import new_state
from t2t.training.recipe import Recipe
from t2t.training.runtime import Runtime, resolve_runtime
from t2t.training.step import Stepper
from t2t.training.train import train

Tiny = Callable[..., Recipe]
CPU = torch.device("cpu")


def build(recipe: Recipe, num_classes: int, classes: Sequence[str] = ()) -> Task:
    """The task of a recipe."""
    world = World(0, 1, CPU)
    runtime = resolve_runtime(Runtime(device="cpu", compile="off"), world)
    return new_state(recipe, runtime, world, num_classes, classes).task


class Table(nn.Module):
    """A model that says the same whatever it sees."""

    def __init__(self, *logits: Tensor) -> None:
        super().__init__()
        self.logits = nn.ParameterList(logits)

    def forward(self, images: Tensor, separate_heads: bool = False) -> Any:
        said = tuple(logits.clone() for logits in self.logits)
        return said if separate_heads else said[0]


@pytest.fixture
def tables() -> tuple[Table, Table, Tensor, Tensor]:
    """Student with two heads, teacher, images and soft targets, of 4 × 3."""
    random = torch.Generator().manual_seed(0)
    first, second, taught = (torch.randn(4, 3, generator=random) for _ in range(3))
    targets = torch.rand(4, 3, generator=random).softmax(1)
    return Table(first, second), Table(taught), torch.zeros(4, 1, 1, 1), targets


def entropy(logits: Tensor, targets: Tensor) -> Tensor:
    return -(targets * (logits - logits.logsumexp(1, keepdim=True))).sum(1).mean()


def divergence(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """KL(teacher ‖ student) × τ², written as the sum that it is."""
    ours, theirs = (
        (student / temperature).softmax(1),
        (teacher / temperature).softmax(1),
    )
    return (theirs * (theirs / ours).log()).sum(1).mean() * temperature**2


@pytest.mark.parametrize("temperature", [1.0, 3.0])
@pytest.mark.parametrize(
    "name", ["classify", "soft", "hard", "token soft", "token hard"]
)
def test_loss_and_gradient(
    name: str,
    temperature: float,
    tables: tuple[Table, Table, Tensor, Tensor],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    student, teacher, images, targets = tables
    first, second = (
        logits.detach().clone().requires_grad_() for logits in student.logits
    )
    taught = teacher.logits[0].detach()
    chosen = torch.eye(3)[taught.argmax(1)]
    context = TaskContext(num_classes=3)
    trained = SimpleNamespace(
        model=teacher,
        path="x",
        class_names=("a", "b", "c"),
        image_size=(1, 1),
        channels=3,
        mean=context.mean,
        std=context.std,
        is_complete=False,
        notes=(),
    )
    monkeypatch.setattr(distill, "load_trained", lambda *_, **__: trained)
    monkeypatch.setattr(distill, "check_token", lambda *_: None)
    kind, expected = {
        "classify": ("classify", entropy(first, targets)),
        "soft": (
            "distill_soft",
            entropy(first, targets) + 0.7 * divergence(first, taught, temperature),
        ),
        "token soft": (
            "distill_token_soft",
            entropy(first, targets) + 0.7 * divergence(second, taught, temperature),
        ),
        "hard": (
            "distill_hard",
            (entropy(first, targets) + 0.7 * entropy(first, chosen)) / 1.7,
        ),
        "token hard": (
            "distill_token_hard",
            (entropy(first, targets) + 0.7 * entropy(second, chosen)) / 1.7,
        ),
    }[name]
    args = {"teacher": "x", "weight": 0.7}
    if "soft" in name:
        args["temperature"] = temperature
    task = build_task(kind, {} if kind == "classify" else args, student, context)
    numbers = task({"images": images, "targets": targets})
    loss = numbers["loss"]
    torch.testing.assert_close(loss, expected)
    loss.backward()
    expected.backward()
    for ours, theirs in zip(student.logits, (first, second), strict=True):
        if theirs.grad is None:
            assert ours.grad is None
        else:
            torch.testing.assert_close(ours.grad, theirs.grad)
    assert teacher.logits[0].grad is None


def test_divergence_vanishes_where_both_agree() -> None:
    logits = torch.randn(3, 5)
    zero = soft_divergence(logits, logits + 7, 2.0)  # a shift changes no softmax
    torch.testing.assert_close(zero, torch.tensor(0.0), atol=1e-6, rtol=0)


@pytest.fixture(scope="module")
def teacher(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder with a trained model of three classes, normalised in its own way."""
    folder = tmp_path_factory.mktemp("teacher") / "run"
    recipe = tiny()
    other = replace(recipe.augmentation, mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7))
    torch.set_num_threads(1)
    train(
        replace(recipe, augmentation=other),
        folder=folder,
        runtime=Runtime(device="cpu"),
        quiet=True,
    )
    return folder


def test_teacher_sees_images_as_it_was_trained(tiny: Tiny, teacher: Path) -> None:
    recipe = tiny(task="distill_soft", task_args={"teacher": str(teacher)})
    task = build(recipe, 3).train()
    assert isinstance(task, Distill)
    assert task.model.training
    assert not task.teacher.training
    assert not any(p.requires_grad for p in task.teacher.parameters())
    levels = torch.rand(2, 3, 8, 8)

    def normalised(mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
        shape = (1, 3, 1, 1)
        return (levels - torch.tensor(mean).view(shape)) / torch.tensor(std).view(shape)

    ours = normalised(recipe.augmentation.mean, recipe.augmentation.std)
    theirs = normalised((0.1, 0.2, 0.3), (0.5, 0.6, 0.7))
    with torch.no_grad():
        torch.testing.assert_close(
            task.teacher_logits(ours), task.teacher(theirs), rtol=1e-4, atol=1e-5
        )


def test_a_teacher_sees_the_view_at_its_own_size(tiny: Tiny, teacher: Path) -> None:
    recipe = tiny(task="distill_soft", task_args={"teacher": str(teacher)})
    task = build(replace(recipe, image_size=(16, 16)), 3)
    assert isinstance(task, Distill)
    seen: list[Tensor] = []
    task.teacher.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    images = torch.rand(2, 3, 16, 16)
    task.teacher_logits(images)
    scale, shift = task.scale, task.shift
    assert scale is not None
    assert shift is not None
    # An antialiased bilinear resize to half is a fixed blur: constant stays constant.
    assert seen[0].shape == (2, 3, 8, 8)
    expected = (images * scale + shift).mean((2, 3))
    torch.testing.assert_close(seen[0].mean((2, 3)), expected, atol=0.05, rtol=0.05)
    flat = torch.full((1, 3, 16, 16), 0.25)
    task.teacher_logits(flat)
    torch.testing.assert_close(seen[1], (flat * scale + shift)[..., :8, :8])


def test_a_colour_teacher_sees_gray_images(tiny: Tiny, teacher: Path) -> None:
    recipe = tiny(task="distill_soft", task_args={"teacher": str(teacher)})
    gray = replace(recipe.augmentation, mean=(0.4,), std=(0.3,))
    task = build(replace(recipe, channels=1, augmentation=gray), 3)
    assert isinstance(task, Distill)
    seen: list[Tensor] = []
    task.teacher.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    levels = torch.rand(2, 1, 8, 8)
    task.teacher_logits((levels - 0.4) / 0.3)
    own = torch.tensor([0.1, 0.2, 0.3]).view(3, 1, 1)
    torch.testing.assert_close(
        seen[0], (levels - own) / torch.tensor([0.5, 0.6, 0.7]).view(3, 1, 1)
    )
    four = replace(gray, mean=(0.4,) * 4, std=(0.3,) * 4)
    recipe = replace(recipe, channels=4, augmentation=four)
    with pytest.raises(UserError, match="for images of 3 channels, and this run tr"):
        build(recipe, 3)


def test_classes_of_the_teacher_are_matched_by_name(tiny: Tiny, teacher: Path) -> None:
    recipe = tiny(task="distill_hard", task_args={"teacher": str(teacher)})
    images = torch.rand(2, 3, 8, 8)
    tasks = [build(recipe, len(names), names) for names in ("abc", "bca", "ca")]
    with torch.no_grad():
        same, moved, fewer = (task.teacher_logits(images) for task in tasks)
    torch.testing.assert_close(moved, same[:, [1, 2, 0]])
    torch.testing.assert_close(fewer, same[:, [2, 0]])


def test_what_is_assumed_of_a_teacher_is_logged(
    tiny: Tiny, cpu: Runtime, teacher: Path, tmp_path: Path
) -> None:
    """A file of tensors alone names no classes and no normalisation."""
    file = tmp_path / "tensors.safetensors"
    save(create_model("test_vit", num_classes=3), file, name="test_vit")
    recipe = tiny(task="distill_soft", task_args={"teacher": str(file)}, epochs=1)
    train(recipe, folder=tmp_path / "run", runtime=cpu, quiet=True)
    log = " ".join((tmp_path / "run" / "log.txt").read_text().split())
    assert "The teacher's classes have no names; those of" in log
    assert "does not state its preprocessing; assumed" in log
    known = tiny(task="distill_soft", task_args={"teacher": str(teacher)})
    assert build(known, 3, ("a", "b", "c")).notes == ()
    (note,) = build(known, 2, ("c", "a")).notes
    assert note.endswith("has 2 of the teacher's 3 classes.")


def test_a_step_copies_no_statistics_of_the_teacher(
    tiny: Tiny, cpu: Runtime, tmp_path: Path
) -> None:
    model = create_model("test_resnet", num_classes=3)
    save(model, tmp_path / "teacher.safetensors", name="test_resnet")
    args = {"teacher": str(tmp_path / "teacher.safetensors")}
    world = World(0, 1, CPU)
    runtime = resolve_runtime(cpu, world)
    for model_name in ("t2t_vit_7_32", "test_resnet"):
        recipe = tiny(task="distill_soft", task_args=args)
        if model_name != recipe.model:
            recipe = replace(recipe, model=model_name, model_args={})
        state = new_state(recipe, runtime, world, 3)
        stepper = Stepper(recipe, runtime, world, state)
        own = {id(buffer) for buffer in batch_norm_buffers(state.model)}
        assert {id(buffer) for buffer in stepper.forward_backward.statistics} == own
        assert batch_norm_buffers(state.task.get_submodule("teacher"))


@pytest.mark.parametrize("name", ["distill_soft", "distill_hard", "distill_token_hard"])
def test_students_train(
    name: str, tiny: Tiny, cpu: Runtime, teacher: Path, tmp_path: Path
) -> None:
    recipe = tiny(task=name, task_args={"teacher": str(teacher)}, epochs=1)
    if "token" in name:
        tokens = {"distilled": True, "class_token": True, "pool": "class"}
        recipe = replace(recipe, model_args={**recipe.model_args, **tokens})
    result = train(recipe, folder=tmp_path / "run", runtime=cpu, quiet=True)
    assert result.finished
    assert result.summary["skipped_steps"] == 0


def test_mistakes_are_reported(
    tiny: Tiny, cpu: Runtime, teacher: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=r"needs a teacher: add --teacher"):
        build(tiny(task="distill_soft"), 3)
    with pytest.raises(UserError, match="task='distil' is not known"):
        build(tiny(task="distil"), 3)
    recipe = tiny(task="distill_soft", task_args={"teacher": str(teacher)})
    with pytest.raises(UserError, match="has 3 classes and the data has 10 others"):
        build(recipe, 10)
    hard = replace(recipe, task="distill_hard")
    with pytest.raises(UserError, match=r"no setting task_args\.temperature; it has"):
        build(replace(hard, task_args={"teacher": "x", "temperature": 2.0}), 3)
    build(recipe, 3, ("a", "b", "c"))
    with pytest.raises(UserError, match=r"does not fit: .* not know: 'x', 'y', 'z'"):
        build(recipe, 3, ("x", "y", "z"))
    model = create_model("test_vit", num_classes=5)
    save(model, tmp_path / "timm.safetensors", name="test_vit")
    args = {"teacher": str(tmp_path / "timm.safetensors")}
    recipe = tiny(task="distill_soft", task_args=args)
    changes = {"model": "test_vit", "model_args": {}, "task": "distill_token_hard"}
    with pytest.raises(UserError, match="a distillation token, which test_vit "):
        build(replace(recipe, **changes), 5)
    recipe = tiny(task="distill_token_hard", task_args={"teacher": str(teacher)})
    with pytest.raises(
        UserError, match=r"which t2t_vit_7_32 .* model_args\.distilled="
    ):
        build(recipe, 3)
    other = tmp_path / "other"
    shutil.copytree(recipe.data, other)
    for split in ("train", "val"):
        (other / split / "a").rename(other / split / "z")
    recipe = tiny(
        task="distill_soft", task_args={"teacher": str(teacher)}, data=str(other)
    )
    with pytest.raises(UserError, match="does not fit"):
        train(recipe, folder=tmp_path / "run", runtime=cpu, quiet=True)
    assert not (tmp_path / "run").exists()


def newest(folder: Path) -> Path:
    return checkpoints(folder / "last")[0]


def test_a_checkpoint_holds_the_teachers_checksum_instead_of_its_tensors(
    tiny: Tiny,
    cpu: Runtime,
    teacher: Path,
    tmp_path: Path,
    interrupt_after: Callable[[int | None], None],
) -> None:
    path = tmp_path / "teacher.safetensors"
    shutil.copy(teacher / "model.safetensors", path)
    recipe = tiny(task="distill_soft", task_args={"teacher": str(path)})
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train(recipe, folder=whole, runtime=cpu, quiet=True)
    interrupt_after(3)
    train(recipe, folder=parts, runtime=cpu, quiet=True)
    stored = FileSystemReader(newest(parts)).read_metadata().state_dict_metadata
    assert any(name.startswith("model/") for name in stored)
    assert not [name for name in stored if "teacher" in name]
    interrupt_after(None)

    path.rename(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=r"^The teacher .* cannot be loaded: There is"):
        train(recipe, folder=parts, runtime=cpu, quiet=True)
    model = load(tmp_path / "elsewhere")
    with torch.no_grad():
        next(model.parameters()).add_(1)
    names = ("a", "b", "c")
    save(model, path, name="t2t_vit_7_32", class_names=names)
    with pytest.raises(UserError, match=r"^The teacher .* has changed .* restore"):
        train(recipe, folder=parts, runtime=cpu, quiet=True)

    (tmp_path / "elsewhere").replace(path)
    assert train(recipe, folder=parts, runtime=cpu, quiet=True).finished
    ours, theirs = (
        (folder / "model.safetensors").read_bytes() for folder in (parts, whole)
    )
    assert ours == theirs


def test_a_teacher_that_its_file_does_not_hold_is_saved(
    tiny: Tiny, teacher: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = tiny(task="distill_soft", task_args={"teacher": str(teacher)})
    task = build(recipe, 3)
    assert [*task.files] == ["teacher"]
    assert task.files["teacher"].checksum == read_pretrained(teacher).checksum
    assert task.saved_modules() == {}
    trained = replace(load_trained(teacher), is_complete=False)
    monkeypatch.setattr(distill, "load_trained", lambda *_, **__: trained)
    task = build(recipe, 3)
    assert task.files == {}
    assert [*task.saved_modules()] == ["teacher"]
