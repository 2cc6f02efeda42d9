"""Epochs and scale by a time: with invented speeds, and in a tiny run."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import t2t
from t2t.errors import UserError
from t2t.recipes import minutes, time_budget
from t2t.recipes.default import Scale, default_recipe, num_epochs, recipe_at, scales
from t2t.recipes.time_budget import Budget, TimedChoice
from t2t.training.forecast.speed import Speed, measure_speed
from t2t.training.loaders import open_data
from t2t.training.recipe import Recipe
from t2t.training.runtime import Runtime

Tiny = Callable[..., Recipe]
SCALES = [Scale("t2t_vit_7", 160, 8), Scale("t2t_vit_7", 96, 8)]
SCALES += [Scale("t2t_vit_7", 96, 16)]


def make(num_images: int) -> Callable[[Scale | None, int], Recipe]:
    def recipe(scale: Scale | None, epochs: int) -> Recipe:
        assert scale is not None
        return recipe_at(scale, "photos", num_images, epochs)

    return recipe


def speed_of(images_per_second: float) -> Callable[[Recipe], Speed]:
    """A machine that is ten times as fast with 36 tokens as with 400."""

    def measure(recipe: Recipe) -> Speed:
        tokens = {(160, 160): 10.0, (96, 96): 4.0}[recipe.image_size]
        if recipe.model_args["splits"][-1][1] == 2:
            tokens = 1.0
        seconds = tokens / images_per_second
        return Speed(0.01 + recipe.batch_size * seconds, 600 * seconds)

    return measure


def chosen(
    asked_for: float, num_images: int, rate: float, *, asked: bool = True
) -> tuple[Recipe, list[str], float]:
    """The recipe, its notes, and its time as a share of the minutes."""
    usual = num_epochs(num_images)
    budget = Budget(minutes=asked_for, asked=asked, started=time.monotonic())
    measure = speed_of(rate)
    choice = TimedChoice(
        budget, make(num_images), SCALES, usual, num_images, measure, by_macs=False
    )
    recipe, notes = choice.recipe()
    seconds = measure(recipe).run_seconds(recipe, num_images)
    return recipe, notes, seconds / (60 * asked_for)


@pytest.mark.parametrize("num_images", [300, 9_000, 100_000, 1_000_000])
@pytest.mark.parametrize("minutes", [10, 60, 600])
def test_the_time_asked_for_is_used(num_images: int, minutes: float) -> None:
    rate = 40 * num_images / minutes  # so many that some scale has enough epochs
    recipe, notes, share = chosen(minutes, num_images, rate)
    assert 0.85 < share <= 1.0
    assert f"Chosen for {minutes} minutes" in notes[0]
    assert f"{recipe.epochs} epochs" in notes[0]


def test_less_time_means_fewer_tokens_then_fewer_epochs() -> None:
    found = [chosen(minutes, 3_000, 1_000)[0] for minutes in (200, 30, 15, 1)]
    sizes = [(each.image_size[0], each.model_args["splits"][-1]) for each in found]
    assert sizes == [
        (160, (3, 1, 1)),
        (96, (3, 1, 1)),
        (96, (3, 2, 1)),
        (96, (3, 2, 1)),
    ]
    assert found[-1].epochs < found[-2].epochs
    # Augmentation, batch size and EMA are those of so few epochs.
    assert (
        found[-1] == recipe_at(SCALES[-1], "photos", 3_000, found[-1].epochs)
        or found[-1].evaluate_every > 1
    )


def test_evaluations_take_a_tenth_of_the_time() -> None:
    recipe, _, _ = chosen(10, 300, 600)
    speed = speed_of(600)(recipe)
    evaluations = recipe.num_evaluations * speed.evaluation_seconds
    assert evaluations < 0.12 * speed.run_seconds(recipe, 300)


def test_a_cpu_has_a_limit_and_says_so() -> None:
    recipe, notes, share = chosen(50, 9_000, 500, asked=False)
    assert share <= 1.0
    assert recipe.epochs < num_epochs(9_000)
    assert "as on any CPU" in notes[0]
    assert "t2t_vit_7 at 160 px with 400 tokens, 200 epochs" in notes[1]
    assert notes[1].endswith("t2t train --data photos --epochs 200")


def test_what_ends_within_the_limit_is_not_changed() -> None:
    recipe, notes, share = chosen(50, 300, 1e6, asked=False)
    assert recipe == recipe_at(SCALES[0], "photos", 300, 300)
    assert notes == []
    assert share < 0.85


def test_the_smallest_scale_trains_an_epoch_at_least() -> None:
    recipe, notes, share = chosen(50, 1_000_000, 10, asked=False)
    assert recipe.epochs == 1
    assert share > 1
    assert "about 28 h" in notes[0] or "1 epoch" in notes[0]


def test_less_than_an_epoch_is_an_error_with_the_time_it_needs() -> None:
    with pytest.raises(UserError, match="--minutes 1 is too short: one epoch") as error:
        chosen(1, 100_000, 100)
    words = str(error.value).split()
    needed = float(words[words.index("least") + 2].strip(","))
    assert chosen(needed, 100_000, 100)[0].epochs >= 1


@pytest.mark.parametrize("side", [100, 160, 200])
def test_scales_go_from_accurate_to_cheap(tmp_path: Path, side: int) -> None:
    for label in ("cat", "dog"):
        (tmp_path / label).mkdir()
        for number in range(6):
            image = Image.new("RGB", (300, side), (number, 0, 0))
            image.save(tmp_path / label / f"{number}.jpg")
    recipe = default_recipe(str(tmp_path))
    assert recipe.image_size[0] == {100: 96, 160: 160, 200: 192}[side]
    found = scales(open_data(recipe).train)
    costs = [time_budget.macs(recipe_at(each, "x", 100, 10)) for each in found]
    assert costs == sorted(costs, reverse=True)
    assert costs[0] > 3 * costs[-1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"minutes": 0}, "more than 0"),
        ({"minutes": float("nan")}, "more than 0"),
        ({"minutes": -3}, "more than 0"),
        ({"minutes": 1e9}, "at most"),
        ({"minutes": 5, "epochs": 3}, "both given"),
        ({"minutes": 5, "set": {"epochs": 3}}, "both given"),
    ],
)
def test_what_is_no_time(arguments: dict[str, Any], words: str, tiny: Tiny) -> None:
    with pytest.raises(UserError, match=words):
        t2t.train(tiny(), device="cpu", **arguments)


def test_several_processes_are_refused(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="torchrun starts several; give --epochs"):
        t2t.train(tiny(), device="cpu", minutes=5)


def test_a_resumed_run_keeps_its_epochs(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    options: dict[str, Any] = {"folder": folder, "device": "cpu", "quiet": True}
    monkeypatch.setattr(minutes, "measure_speed", lambda *_: Speed(4.0, 0.0))
    assert t2t.train(tiny(), minutes=1, **options).finished
    epochs = json.loads((folder / "recipe.json").read_text())["epochs"]
    assert epochs > 1

    def refuse(*_: object) -> Speed:
        raise AssertionError("a run that has started is not timed again")

    monkeypatch.setattr(minutes, "measure_speed", refuse)
    assert t2t.train(tiny(), minutes=1, **options).already_finished


def test_a_measured_speed_is_that_of_the_run(tiny: Tiny) -> None:
    recipe = tiny(epochs=2)
    splits = open_data(recipe)
    speed = measure_speed(recipe, Runtime(device="cpu"), splits)
    assert 0 < speed.step_seconds < 5
    assert 0 < speed.evaluation_seconds < 5
    expected = 2 * (len(splits.train) // recipe.batch_size) * speed.step_seconds
    expected += recipe.num_evaluations * speed.evaluation_seconds
    assert speed.run_seconds(recipe, len(splits.train)) == pytest.approx(expected)
