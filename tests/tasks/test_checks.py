"""A user's task that is or returns something else is one sentence."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from example_tasks import TwoViews
from torch import nn

from t2t.errors import UserError
from t2t.registry import Registry
from t2t.tasks import TASKS, Metric, Task, TaskContext, register_task, registry
from t2t.tasks.base import update_moving_average
from t2t.tasks.checks import LOGGED, SUMMARIZED
from t2t.tasks.classify import Classify
from t2t.training.logging.metrics import read_rows
from t2t.training.recipe import Recipe
from t2t.training.run_files import read_json
from t2t.training.runtime import Runtime
from t2t.training.saved_run import find_result, read_result
from t2t.training.train import train

Tiny = Callable[..., Recipe]


def returning(value: Any) -> Callable[..., Any]:
    return lambda self, *_: value


def loss_and(**others: Any) -> Callable[..., Any]:
    return lambda self, views: {**Classify.forward(self, views), **others}


def rows(num: int | None = None, name: str = "top1") -> Callable[..., Any]:
    return lambda self, model, images, labels: {
        name: torch.zeros(len(images) if num is None else num)
    }


class OwnParameter(Classify):
    def __init__(self, model: nn.Module, context: TaskContext, args: Any) -> None:
        super().__init__(model, context, args)
        self.scale = nn.Parameter(torch.ones(()))


def no_arguments(self: Any) -> None: ...


@pytest.fixture
def trained(
    tiny: Tiny, cpu: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[type[Task]], Path]:
    """Trains a task for an epoch; returns its folder."""

    def run(kind: type[Task]) -> Path:
        monkeypatch.setitem(TASKS, "own", kind)
        folder = tmp_path / "run"
        recipe = tiny(task="own", epochs=1)
        train(recipe, folder=folder, runtime=cpu, quiet=True)
        return folder

    return run


@pytest.mark.parametrize(
    ("name", "method", "sentence"),
    [
        ("forward", returning(None), "forward returns None; it must return a dict wi"),
        ("forward", returning({"lss": 1}), "a dict of lss; it must return a dict with"),
        ("forward", returning({"loss": 1.0}), "returns a float as 'loss'; it must be"),
        ("forward", loss_and(x=torch.ones(3)), r"a tensor of shape \(3,\) as 'x'"),
        ("forward", loss_and(lr=torch.ones(())), "named 'lr', as training names a"),
        (
            "forward",
            returning({"loss": torch.ones(())}),
            "a loss that no trained weight has a part in",
        ),
        ("views", returning((1, 2)), "views returns a tuple; it must return a dict"),
        ("views", returning({}), "views returns an empty dict"),
        ("views", returning({"x": torch.ones(5)}), "a row for each of the 16 images"),
        ("crops", returning(()), r"crops returns \(\); it must return a tuple"),
        ("crops", returning(("x",)), r"crops returns \('x',\); it must"),
        ("score", returning(None), "score returns None; it must return a dict"),
        ("score", rows(5), "a row for each of the 2 images"),
        ("score", rows(), "score returns no 'top5', which is a metric"),
        ("summarize", returning({"top1": 1.0}), "returns no 'top5', a metric of"),
        (
            "summarize",
            returning({each.name: torch.ones(()) for each in Classify.metrics}),
            r"as 'top1', not a number; use \.item\(\)",
        ),
        ("summarize", returning([1.0]), "summarize returns a list, not a dict"),
        (
            "warning",
            classmethod(lambda *_: 5),
            "warning returns a int; it must return a sentence",
        ),
        ("__init__", no_arguments, r"is called with 3 arguments \(VisionTransformer"),
        ("__init__", OwnParameter.__init__, "scale is a parameter of the task itself"),
    ],
)
def test_a_method_that_is_wrong_is_named(
    name: str,
    method: Callable[..., Any],
    sentence: str,
    trained: Callable[[type[Task]], Path],
) -> None:
    base = OwnParameter if method is OwnParameter.__init__ else Classify
    with pytest.raises(UserError, match=sentence):
        trained(type("Own", (base,), {} if base is OwnParameter else {name: method}))


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        (nn.Linear, "'own' is a Linear, not a class derived from t2t.Task"),
        (lambda *_: None, "'own' is a function, not a class"),
        (type("Own", (Task,), {}), "'own' does not define views: add it"),
        (type("Own", (Classify,), {"Args": dict}), "must be a dataclass"),
        (type("Own", (Classify,), {"metrics": ()}), r"has metrics = \(\); name what"),
        (type("Own", (Classify,), {"metrics": Metric("x", "x")}), "metrics = Metric"),
        (type("Own", (Classify,), {"metrics": ("top1",)}), r"metrics = \('top1',\)"),
        (type("Own", (Classify,), {"metrics": (Metric("step", "x"),)}), "'step'"),
        (
            type("Own", (Classify,), {"views": lambda self, pixels: {}}),
            r"views of task 'own' is called with \(self, pixels, labels, rng, .*\), "
            r"and \(self, pixels\) does not take them: too many",
        ),
        (
            type("Own", (Classify,), {"warning": classmethod(lambda kind: "")}),
            r"warning of task 'own' is called with \(numbers, progress\)",
        ),
        (type("Own", (Classify,), {"metrics": (Metric("model", "x"),)}), "'model'"),
    ],
)
def test_what_is_no_task_is_not_registered(kind: Any, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        register_task("own")(kind)
    assert "own" not in TASKS


def test_methods_may_have_defaults_and_be_static(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registry, "TASKS", Registry("task", {}))

    class Own(Classify):
        def forward(self, views: Any, weight: float = 1.0) -> Any: ...

        @staticmethod
        def crops(crop: Any) -> Any: ...  # type: ignore[override]

    assert register_task("own")(Own) is Own


def test_a_mistake_in_the_scoring_is_found_before_the_folder_is_made(
    trained: Callable[[type[Task]], Path], tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="summarize returns None"):
        trained(type("Own", (Classify,), {"summarize": returning(None)}))
    assert not (tmp_path / "run").exists()


def test_a_division_by_zero_on_noise_ends_no_run(
    trained: Callable[[type[Task]], Path],
) -> None:
    def summarize(self: Classify, values: dict[str, torch.Tensor]) -> dict[str, float]:
        1 / max(len(values["index"]) - 2, 0)
        return Classify.summarize(self, values)

    assert trained(type("Own", (Classify,), {"summarize": summarize})).is_dir()


def test_names_of_training_itself_are_taken(
    trained: Callable[[type[Task]], Path],
) -> None:
    folder = trained(Classify)
    metrics = {"loss", *(each.name for each in Classify.metrics)}
    metrics |= {f"{name}_raw" for name in metrics}
    written = {key for row in read_rows(folder / "metrics.jsonl") for key in row}
    assert written - metrics == LOGGED
    assert read_json(folder / "result.json").keys() - metrics == SUMMARIZED


def test_a_metric_that_is_not_finite_ends_no_run(
    trained: Callable[[type[Task]], Path],
) -> None:
    rest = {"macro_accuracy": 1.0, "val_loss": 1.0}

    def summarize(self: Task, values: object) -> dict[str, float]:
        return {"top1": math.nan, "top5": math.inf, **rest}

    folder = trained(type("Own", (Classify,), {"summarize": summarize}))
    result = find_result(folder)
    assert result is not None
    assert result["top1"] is None
    assert Classify.metrics[0].show(result["top1"]) == "not finite"
    with pytest.raises(UserError, match="its top1 is not a finite number"):
        read_result(folder)


def test_a_part_of_the_model_may_be_named_by_the_task(
    trained: Callable[[type[Task]], Path],
) -> None:
    class Named(Classify):
        def __init__(self, model: Any, context: TaskContext, args: Any) -> None:
            super().__init__(model, context, args)
            self.encoder = model.encoder

    assert find_result(trained(Named)) is not None


@pytest.mark.parametrize("applied", [0.0, 1.0])
def test_a_moving_average_waits_for_steps_that_are_applied(applied: float) -> None:
    average, model = nn.BatchNorm1d(2), nn.BatchNorm1d(2)
    nn.init.constant_(model.weight, 3.0)
    model.running_mean.fill_(5.0)  # type: ignore[union-attr]
    update_moving_average(average, model, 0.75, torch.tensor(applied))
    assert average.weight.tolist() == [1 + 0.5 * applied] * 2
    assert average.running_mean.tolist() == [5 * applied] * 2  # type: ignore[union-attr]


def test_a_task_without_labels_knows_no_classes(
    tiny: Tiny, cpu: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contexts: list[TaskContext] = []

    class Recorded(TwoViews):
        def __init__(self, model: Any, context: TaskContext, args: Any) -> None:
            contexts.append(context)
            super().__init__(model, context, args)

    monkeypatch.setitem(TASKS, "own", Recorded)
    recipe = tiny(task="own", epochs=1)
    light = replace(recipe.augmentation, mixup=0.0, smoothing=0.0)
    recipe = replace(recipe, augmentation=light)
    train(recipe, folder=tmp_path / "run", runtime=cpu, quiet=True)
    assert (contexts[-1].num_classes, contexts[-1].class_names) == (0, ())
