"""The likely changes touch the places that docs/architecture.md names for them."""

import importlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import t2t
from t2t.cli import main
from t2t.data.augment.config import Augmentation
from t2t.data.sources.base import ArraySource
from t2t.tasks.classify import Classify
from t2t.training.recipe import EMA, OptimizerConfig, Recipe, Schedule
from t2t.training.runtime import Runtime
from t2t.training.train import train

ROOT = Path(__file__).parents[2]
ROW = re.compile(
    r"^\| ([a-z ]+) \| (?:`t2t\.(\w+)`|–) \| `(\w+)` in `([\w/.]+)` \|$", re.MULTILINE
)
CHANGES = ("tokenizer", "augmentation", "task", "data source", "optimizer", "command")


class Place(NamedTuple):
    """A row of the page's table."""

    register: str
    """The function of `t2t` that makes the change from outside, if there is one."""
    table: str
    path: str

    @property
    def choices(self) -> dict[str, Any]:
        """The dict in the package that holds all choices by name."""
        module = self.path.removesuffix(".py").removesuffix("/__init__")
        found = getattr(importlib.import_module(module.replace("/", ".")), self.table)
        assert isinstance(found, dict)
        return found


def places() -> dict[str, Place]:
    """The places that the page names for each change."""
    page = (ROOT / "docs/architecture.md").read_text()
    return {change: Place(*rest) for change, *rest in ROW.findall(page)}


@pytest.fixture
def register(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """The `register_*` function of a change; what it adds is removed afterwards."""
    place = places()[request.param]
    before = dict(place.choices)
    yield getattr(t2t, place.register)
    added = place.choices.keys() - before.keys()
    assert len(added) == 1, f"{place.table} in {place.path} has not changed"
    del place.choices[added.pop()]


def change(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("register", [name], indirect=True)


def run(folder: Path, **changes: Any) -> dict[str, Any]:
    """The summary of a training run of four steps."""
    given: dict[str, Any] = {
        "name": "small",
        "model": "t2t_vit_7_32",
        "model_args": {"dim": 16, "depth": 1, "num_heads": 2, "token_dim": 8},
        "data": "digits",
        "holdout": 1300,
        "image_size": (8, 8),
        "epochs": 1,
        "batch_size": 32,
        "optimizer": OptimizerConfig(lr=1e-2, reference_batch_size=32),
        "schedule": Schedule(warmup_epochs=0),
        "ema": EMA(decay=0.5),
        "augmentation": Augmentation(),
    }
    recipe = Recipe(**given | changes)
    runtime = Runtime(device="cpu", compile="off", workers=1)
    result = train(recipe, folder=folder, runtime=runtime, quiet=True)
    assert result.finished
    return result.summary


def test_the_page_names_a_place_for_every_change() -> None:
    assert {*places()} == {*CHANGES}
    for change, place in places().items():
        assert (ROOT / place.path).is_file()
        assert place.choices
        assert bool(place.register) == (change != "command")


@change("tokenizer")
def test_a_tokenizer(register: Callable[..., Any], tmp_path: Path) -> None:
    @register("test_pooling")
    class Pooling(t2t.Tokenizer):
        def __init__(self, config: t2t.ModelConfig) -> None:
            super().__init__([(2, 2, 0)])
            self.layers = nn.Sequential(
                nn.AvgPool2d(2), nn.Conv2d(config.in_channels, config.dim, 1)
            )

        def forward(self, images: Tensor) -> Tensor:
            return self.layers(images)

    model_args = {"dim": 16, "depth": 1, "num_heads": 2, "tokenizer": "test_pooling"}
    run(tmp_path / "run", model_args=model_args)
    model = t2t.load(tmp_path / "run")
    assert isinstance(model.tokenizer, Pooling)


@change("augmentation")
def test_an_augmentation(register: Callable[..., Any], tmp_path: Path) -> None:
    values_seen = []

    @register("test_half")
    def half(images: Tensor, values: Tensor) -> Tensor:
        values_seen.append(values)
        return images // 2

    augmentation = Augmentation(
        rand_augment="rand-m9-n1-p1", rand_augment_operations=("test_half",)
    )
    run(tmp_path / "run", augmentation=augmentation)
    assert values_seen


@change("task")
def test_a_task(register: Callable[..., Any], tmp_path: Path) -> None:
    @register("test_squares")
    class Squares(Classify):
        def forward(self, views: dict[str, Tensor]) -> dict[str, Tensor]:
            error = self.model(views["images"]).softmax(dim=1) - views["targets"]
            return {"loss": error.square().sum(dim=1).mean()}

    summary = run(tmp_path / "run", task="test_squares")
    assert summary["task"] == "test_squares"
    assert 0 <= summary["top1"] <= 100


@change("data source")
def test_a_data_source(register: Callable[..., Any], tmp_path: Path) -> None:
    @register("test_noise", splits=("train", "val"))
    def noise(split: str) -> ArraySource:
        num_images = {"train": 64, "val": 16}[split]
        images = torch.randint(256, (num_images, 3, 8, 8), dtype=torch.uint8)
        labels = np.arange(num_images) % 2
        return ArraySource(images, labels, ["a", "b"], f"noise ({split})")

    run(tmp_path / "run", data="test_noise", holdout=0)
    assert t2t.load(tmp_path / "run").config.num_classes == 2


@change("optimizer")
def test_an_optimizer(register: Callable[..., Any], tmp_path: Path) -> None:
    built = []

    @register("test_rprop")
    def rprop(
        groups: list[dict[str, Any]], settings: OptimizerConfig
    ) -> torch.optim.Optimizer:
        built.append(torch.optim.Rprop(groups, lr=settings.lr))
        return built[0]

    run(tmp_path / "run", optimizer=OptimizerConfig(name="test_rprop", lr=1e-2))
    assert built[0].state


def test_a_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def shout(*, word: str, times: int = 1) -> None:
        """Print a word in capitals."""
        print(" ".join([word.upper()] * times))

    monkeypatch.setitem(places()["command"].choices, "shout", shout)
    assert main(["shout", "--word", "hello", "--times", "2"]) == 0
    assert capsys.readouterr().out == "HELLO HELLO\n"
    assert main(["--help"]) == 0
    assert "Print a word in capitals." in capsys.readouterr().out


def test_an_optimizer_of_timm(tmp_path: Path) -> None:
    run(tmp_path / "run", optimizer=OptimizerConfig(name="lamb", lr=1e-3))
