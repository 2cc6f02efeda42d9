"""The recipe for photographs at all sizes, and the GPU jobs that try it."""

import runpy
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from t2t.models.create import create_model
from t2t.recipes import photos
from t2t.recipes.photos import batch_for, photo_recipe, stride_for
from t2t.training.initial_state import build_model
from t2t.training.optim import build_optimizers
from t2t.training.recipe import Recipe

ROOT = Path(__file__).parents[2]
JOBS = ROOT / "benchmarks/jobs"


def recipe(num_images: int, side: int, epochs: int, model: str) -> Recipe:
    return photo_recipe(
        "own",
        "photos",
        num_images=num_images,
        image_size=(side, side),
        epochs=epochs,
        model=model,
    )


@pytest.mark.parametrize("side", [96, 128, 160, 192, 224, 256])
@pytest.mark.parametrize("model", ["t2t_vit_7", "t2t_vit_14", "t2t_pyramid_base"])
def test_models_have_a_fitting_grid_and_at_most_22_million(
    side: int, model: str
) -> None:
    found = recipe(9_000, side, 80, model)
    with torch.device("meta"):
        network = build_model(found, 10)
    assert sum(p.numel() for p in network.parameters()) <= 22e6
    rows, columns = network.tokenizer.grids((side, side))[-1]
    if model != "t2t_pyramid_base":
        assert 10 <= rows == columns <= 20
    assert build_optimizers(network, found)
    network.encoder.keep_tokens(found.token_dropping.keep_at(0.0))


@pytest.mark.parametrize("num_images", [2, 20, 300, 9_025, 100_000, 1_000_000])
@pytest.mark.parametrize("epochs", [1, 5, 20, 80, 300])
def test_every_number_of_images_makes_steps(num_images: int, epochs: int) -> None:
    batch_size = batch_for(num_images, epochs)
    assert 1 <= batch_size <= min(num_images, 512)
    assert num_images < 200 or num_images // batch_size >= 8
    steps = epochs * (num_images // batch_size)
    assert steps >= min(1_400, epochs * num_images // 32)
    found = recipe(num_images, 128, epochs, "t2t_vit_7")
    assert found.schedule.warmup_epochs < epochs
    assert 0.8 < found.ema.decay < 0.99997


def test_longer_runs_see_stronger_augmentation() -> None:
    by_epochs = [recipe(9_025, 128, epochs, "t2t_vit_14") for epochs in (5, 20, 80)]
    augmentations = [each.augmentation for each in by_epochs]
    assert [each.cutmix for each in augmentations] == [0.0, 1.0, 1.0]
    assert [bool(each.rand_augment) for each in augmentations] == [False, False, True]
    assert [each.token_dropping.keep for each in by_epochs] == [1.0, 1.0, 0.5]


def test_strides_follow_the_larger_side() -> None:
    assert [stride_for((side, side)) for side in (64, 128, 224)] == [4, 8, 16]
    assert stride_for((96, 224)) == 16


def test_the_board_has_one_recipe_by_its_epochs() -> None:
    for name, function in photos.RECIPES.items():
        found = function()
        assert name == f"imagewoof_{found.epochs}"
        assert found.image_size == (128, 128)


def test_every_trial_can_be_built() -> None:
    script = runpy.run_path(str(ROOT / "benchmarks/photo_trials.py"))
    plain = script["recipe_of"]("plain@80", 7_025, 2_000)
    assert (plain.holdout, plain.epochs) == (2_000, 80)
    for name in script["CHANGES"]:
        found = script["recipe_of"](f"{name}@80", 7_025, 2_000)
        same = replace(found, name=plain.name) == plain
        assert same == (name in ("plain", "mixed_always", "colours", "drop_path"))
        with torch.device("meta"):
            network = build_model(found, 10)
            assert build_optimizers(network, found)


def test_a_misspelled_trial_ends_the_script_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["photo_trials.py", "photos", "plain@5", "plane@5", "--out", "rows.jsonl"]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit):
        runpy.run_path(str(ROOT / "benchmarks/photo_trials.py"), run_name="__main__")
    assert "plane is no change; there are plain, all_tokens" in capsys.readouterr().err


def test_a_pyramid_keeps_its_own_splits() -> None:
    found = recipe(9_025, 128, 80, "t2t_pyramid_small")
    with torch.device("meta"):
        network = build_model(found, 10)
        plain = create_model("t2t_pyramid_small", image_size=128, num_classes=10)
    assert network.config.splits == plain.config.splits
    assert found.token_dropping.keep == 1.0
