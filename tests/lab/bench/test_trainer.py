"""The trainer's own step, on random images and from files."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from t2t.analysis.cost import count
from t2t.data.batches import Batches
from t2t.data.packing.pack import pack
from t2t.errors import UserError
from t2t.lab.bench.measure_training import measure_recipes
from t2t.lab.bench.rows import identity, row_line
from t2t.lab.bench.timing import Timing
from t2t.lab.bench.trainer import BenchTrainer, Files, open_files
from t2t.recipes.imagenet import published
from t2t.training.initial_state import build_model
from t2t.training.loaders import training_batches
from t2t.training.recipe import Recipe, TokenDropping
from t2t.training.runtime import Runtime

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two JPEGs in each of three classes."""
    folder = tmp_path_factory.mktemp("photos")
    random = np.random.default_rng(0)
    for name in ("a/1", "a/2", "b/1", "b/2", "c/1", "c/2"):
        path = folder / f"{name}.jpg"
        path.parent.mkdir(exist_ok=True)
        pixels = random.integers(0, 256, (40, 50, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path)
    return folder


@pytest.fixture
def recipe() -> Recipe:
    small = {"dim": 16, "depth": 1, "num_heads": 1, "token_dim": 8}
    return replace(
        published("t2t_vit_7"), image_size=(32, 32), batch_size=4, model_args=small
    )


def test_few_files_are_gone_through_until_they_fill_batches(
    photos: Path, tmp_path: Path
) -> None:
    source, kind = open_files(Files(data=str(photos)), batch_size=4)
    assert (len(source), kind) == (18, "jpeg")
    assert source.read(0) == source.read(6)
    pack(photos, tmp_path / "pack")
    source, kind = open_files(Files(data=str(tmp_path / "pack"), repeat=2), 4)
    assert (len(source), kind) == (2 * 3, "pack")  # three are kept to judge by


def test_a_step_is_that_of_the_training_loop(photos: Path, recipe: Recipe) -> None:
    trainer = BenchTrainer(recipe, Runtime(device="cpu"), CPU, Files(data=str(photos)))
    trainer.start()
    assert trainer.num_classes == 3
    before = [weight.clone() for weight in trainer.state.model.parameters()]
    with_files = next(trainer.batches())
    assert with_files.images.shape == next(trainer.synthetic_batches()).images.shape
    trainer.step(with_files)
    assert trainer.state.step == 1
    after = trainer.state.model.parameters()
    changed = [not torch.equal(a, b) for a, b in zip(after, before, strict=True)]
    assert sum(changed) > len(changed) / 2


def test_nothing_is_timed_while_processes_start(
    photos: Path, recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed = []

    def opened(*given: Any, **options: Any) -> Batches:
        fed.append(given[-1])
        return training_batches(*given, **options)

    monkeypatch.setattr("t2t.lab.bench.trainer.training_batches", opened)
    trainer = BenchTrainer(recipe, Runtime(device="cpu"), CPU, Files(data=str(photos)))
    trainer.start()
    next(trainer.batches())
    assert [loader_options.threads_first for loader_options in fed] == [False]


def test_rows_from_files_stand_beside_the_step_alone(
    photos: Path, recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So slow a unit that a share keeps its digits, however busy the machine is.
    monkeypatch.setattr("t2t.lab.bench.measure_training.matrix_rate", lambda *_: 1e6)
    files = Files(data=str(photos))
    runtime = Runtime(device="cpu", workers=1)
    alone, fed = (
        measured.row
        for measured in measure_recipes(
            [recipe], [runtime], CPU, files, "it", seconds=0.01
        )
    )
    assert (alone["source"], fed["source"]) == ("synthetic", "jpeg")
    # Forward once and backward twice, a multiplication and an addition each.
    items = count(build_model(recipe, 3), (32, 32)).items
    work = 6 * (sum(items.values()) - items["normalisation"])
    for row in (alone, fed):
        share = row["images_per_second"] * work / 1e6
        assert row["matrix_share"] == pytest.approx(share, rel=1e-2)
        assert (row["recipe"], row["launch"]) == ("imagenet.t2t_vit_7", "eager")
        assert (row["image_size"], row["batch"], row["precision"]) == (32, 4, "fp32")
    assert fed["synthetic_images_per_second"] == alone["images_per_second"]
    share = fed["images_per_second"] / alone["images_per_second"]
    assert fed["synthetic_share"] == pytest.approx(share, rel=1e-2)


def test_memory_is_that_of_steps_alone(
    photos: Path, recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    def matrix_rate(*_: object) -> float:
        torch.ones(2**27)  # half a GiB, given back at once
        return 1e12

    monkeypatch.setattr("t2t.lab.bench.measure_training.matrix_rate", matrix_rate)
    rows = measure_recipes(
        [recipe],
        [Runtime(device="cpu", workers=1)],
        CPU,
        Files(data=str(photos)),
        "it",
        seconds=0.01,
    )
    for measured in rows:
        gib = measured.row["peak_memory_gib"]
        if gib is None:
            pytest.skip("this system does not tell")
        assert gib < 0.4


def test_rows_name_their_source(photos: Path, recipe: Recipe) -> None:
    files = Files(data=str(photos), resident=True)
    runtime = Runtime(device="cpu", workers=1)
    oblong = replace(recipe, image_size=(32, 24))
    alone, fed = (
        measured.row
        for measured in measure_recipes(
            [oblong], [runtime], CPU, files, "it", seconds=0.01
        )
    )
    assert (fed["workers"], fed["resident"]) == (1, True)
    assert not {"workers", "resident"} & alone.keys()
    assert fed["image_size"] == alone["image_size"] == [32, 24]


def test_every_phase_is_timed_and_has_its_share(
    recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    clocks = iter((0.02, 0.05, 0.04))

    def timed(step: Callable[[], None], *_: object) -> Timing:
        step()
        return Timing((next(clocks),) * 5)  # what else runs here must not count

    monkeypatch.setattr("t2t.lab.bench.measure_training.time_steps", timed)
    token_dropping = TokenDropping(keep=0.5, until=0.6)
    phased = replace(recipe, token_dropping=token_dropping, light_augment_share=0.1)
    (measured,) = measure_recipes(
        [phased], [Runtime(device="cpu")], CPU, None, "it", seconds=0.01
    )
    row = measured.row
    phases = row["phases"]
    assert [(each["keep"], each["light_augment"]) for each in phases] == [
        (0.5, False),
        (1.0, False),
        (1.0, True),
    ]
    assert [each["share"] for each in phases] == pytest.approx([0.6, 0.3, 0.1])
    seconds = sum(each["share"] / each["images_per_second"] for each in phases)
    assert row["images_per_second"] == pytest.approx(1 / seconds, rel=1e-3)
    assert row["matrix_share"] is None
    assert f"{phases[0]['images_per_second']:,.0f} for 60% of the steps" in row_line(
        row
    )


def test_a_recipe_that_fails_says_why_and_stops_no_other(recipe: Recipe) -> None:
    broken = replace(recipe, model_args={**recipe.model_args, "num_heads": 3})
    first, second = (
        measured.row
        for measured in measure_recipes(
            [broken, recipe], [Runtime(device="cpu")], CPU, None, "it", seconds=0.01
        )
    )
    assert "num_heads=3" in first["failed"]
    assert second["images_per_second"] > 0
    assert identity(first) == identity(second)  # so that it takes the other's place


def test_missing_data_is_reported(recipe: Recipe) -> None:
    with pytest.raises(UserError, match="no file or folder"):
        BenchTrainer(recipe, Runtime(device="cpu"), CPU, Files(data="nowhere/at/all"))
