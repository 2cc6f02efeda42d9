"""Cross-validation: disjoint folds, resumed, summarized; no final model is saved."""

import json
import statistics
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

import t2t
from t2t.commands.folds_summary import folds_summary
from t2t.data.sources import ArraySource, Splits, open_splits
from t2t.data.sources.splitting import fold_of
from t2t.errors import UserError
from t2t.training import train as train_module
from t2t.training.evaluation.evaluate_model import evaluate_model
from t2t.training.evaluation.evaluation_data import find_data
from t2t.training.loaders import open_data
from t2t.training.recipe import Recipe
from t2t.training.result import Result
from t2t.training.runtime import Runtime
from t2t.training.saved_run import read_recipe

RUNTIME = Runtime(device="cpu", compile="off", workers=1)
MODEL = {"dim": 8, "depth": 1, "num_heads": 1, "token_dim": 4}


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """31 images without splits, of two uneven classes."""
    folder = tmp_path_factory.mktemp("photos")
    random = np.random.default_rng(0)
    for name, count in (("cat", 24), ("dog", 7)):
        (folder / name).mkdir()
        for number in range(count):
            pixels = random.integers(0, 120, (8, 8, 3)).astype(np.uint8)
            pixels[..., 0 if name == "cat" else 2] += 100
            Image.fromarray(pixels).save(folder / name / f"{number}.png")
    return folder


@pytest.fixture
def recipe(photos: Path) -> Recipe:
    return Recipe(
        name="tiny",
        model="t2t_vit_7_32",
        model_args={**MODEL, "splits": ((3, 2, 1), (3, 1, 1), (3, 1, 1))},
        data=str(photos),
        image_size=(8, 8),
        epochs=2,
        batch_size=10,
        schedule=t2t.Schedule(warmup_epochs=0),
    )


@pytest.fixture(autouse=True)
def no_curves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing them takes longer than these runs."""
    torch.set_num_threads(1)
    monkeypatch.setattr(
        "t2t.training.logging.metrics_log.draw_curves",
        lambda rows, title, path, metric: path.touch(),
    )


@pytest.mark.parametrize("num_folds", [2, 5, 31])
def test_folds_are_disjoint_and_stratified(num_folds: int, photos: Path) -> None:
    splits = open_splits(photos)
    whole = open_splits(photos).train.source  # type: ignore[attr-defined]
    held: list[str] = []
    dogs = []
    for number in range(1, num_folds + 1):
        fold = fold_of(splits, number, num_folds, seed=3)
        names = [fold.val.name(index) for index in range(len(fold.val))]
        kept = [fold.train.name(index) for index in range(len(fold.train))]
        assert not {*names} & {*kept}
        assert len(names) + len(kept) == 31
        assert abs(len(names) - 31 / num_folds) < 1
        dogs.append(int((fold.val.labels == 1).sum()))
        held += names
    assert sorted(held) == sorted(whole.name(index) for index in range(31))
    assert max(dogs) - min(dogs) <= 1
    other = fold_of(splits, 1, num_folds, seed=4)
    first = fold_of(splits, 1, num_folds, seed=3)
    assert other.val.fingerprint() != first.val.fingerprint()


def test_a_validation_set_stays_out_of_the_folds() -> None:
    images = torch.zeros(20, 3, 8, 8, dtype=torch.uint8)
    train = ArraySource(images, [0, 1] * 10, ("a", "b"))
    val = ArraySource(images[:4], [0, 1] * 2, ("a", "b"))
    fold = fold_of(Splits(train, val, ""), 1, 5)
    assert (len(fold.train), len(fold.val)) == (16, 4)
    assert fold.val.source is train  # type: ignore[attr-defined]


def test_all_folds_are_trained_and_summarized(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "own"
    monkeypatch.setattr(sys, "argv", ["t2t", "train", "--folds", "3", "--data", "x"])
    result = t2t.train(recipe, folds=3, folder=folder, runtime=RUNTIME, quiet=True)
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["fold1", "fold2", "fold3", "folds.json"]
    assert result.finished
    values = [each.summary["top1"] for each in result.folds]
    assert result.summary["top1_folds"] == values
    assert result.summary["top1"] == pytest.approx(statistics.mean(values))
    assert result.summary["top1_std"] == pytest.approx(statistics.stdev(values))
    assert json.loads((folder / "folds.json").read_text()) == result.summary
    console = Console(width=120, color_system=None)
    with console.capture() as captured:
        console.print(folds_summary(result))
    page = captured.get()
    assert f"{statistics.mean(values):.2f} ± {statistics.stdev(values):.2f} %" in page
    assert "none is the final model" in page
    assert "\n  t2t train --data x\n" in page
    # Each fold is a run: it is evaluated on its own images, and can be resumed.
    report = evaluate_model(folder / "fold2", device="cpu")
    assert report is not None
    held = open_data(read_recipe(folder / "fold2"))
    assert report.score.num_images == len(held.val) == 10
    assert report.score.top1 == pytest.approx(values[1])
    found = find_data(report.trained, None, "train")
    assert len(found.source) == 21
    with pytest.raises(UserError, match=r"holds the folds of a cross-val.*own/fold1"):
        evaluate_model(folder, device="cpu")
    # The final run may stand beside them.
    final = t2t.train(recipe, folder=folder, runtime=RUNTIME, quiet=True)
    assert final.finished
    assert (folder / "model.safetensors").exists()


def test_a_stopped_cross_validation_goes_on(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    train = train_module.train

    def stop_in_second(recipe: Recipe, **options: object) -> Result:
        assert recipe.fold is not None
        calls.append(recipe.fold[0])
        result: Callable[..., Result] = train
        found = result(recipe, **options)
        return replace(found, finished=calls != [1, 2])

    monkeypatch.setattr(train_module, "train", stop_in_second)
    first = t2t.train(recipe, folds=2, folder=tmp_path, runtime=RUNTIME, quiet=True)
    assert not first.finished
    assert not (tmp_path / "folds.json").exists()
    monkeypatch.delattr("t2t.training.train.Trainer")  # nothing is trained again
    again = t2t.train(recipe, folds=2, folder=tmp_path, runtime=RUNTIME, quiet=True)
    assert again.finished
    assert again.already_finished
    assert calls == [1, 2, 1, 2]


@pytest.mark.parametrize(
    ("changes", "folds", "sentence"),
    [
        ({}, 1, "--folds 1 is too small: give 2 or more"),
        ({}, 40, "31 images cannot be divided into 40 folds"),
        ({"fold": (1, 3)}, 3, r"has fold=\[1, 3\] already"),
        ({"holdout": 4}, 3, "both choose the images to evaluate on"),
    ],
)
def test_impossible_folds_are_refused(
    changes: dict[str, object],
    folds: int,
    sentence: str,
    recipe: Recipe,
    tmp_path: Path,
) -> None:
    with pytest.raises(UserError, match=sentence):
        t2t.train(
            replace(recipe, **changes),  # type: ignore[arg-type]
            folds=folds,
            folder=tmp_path / "run",
            runtime=RUNTIME,
            quiet=True,
        )
    assert not (tmp_path / "run").exists()


def test_folds_need_two_images_of_a_class_and_one_process(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = torch.zeros(9, 3, 8, 8, dtype=torch.uint8)
    source = ArraySource(images, [0] * 8 + [1], ("a", "b"))
    with pytest.raises(UserError, match="Class 'b' has a single image"):
        fold_of(Splits(source, source, ""), 1, 2)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="start it without torchrun"):
        t2t.train(recipe, folds=2, folder=tmp_path, runtime=RUNTIME)
