"""What is said before a run: few images, rough accuracies, and about how long."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from t2t.data.sources import ArraySource, Splits, open_splits
from t2t.errors import UserError
from t2t.training.distributed import World
from t2t.training.forecast import advice as module
from t2t.training.forecast.advice import (
    advice,
    confidence_interval,
    forecast,
    margin,
    remaining_work,
    rounded,
    size_notes,
)
from t2t.training.forecast.estimate import estimate
from t2t.training.recipe import Recipe, TokenDropping
from t2t.training.runtime import Runtime, resolve_runtime
from t2t.training.train import train

Tiny = Callable[..., Recipe]
TEAM = World(0, 1, torch.device("cpu"))


def splits(num_train: int, num_val: int) -> Splits:
    sources = [
        ArraySource(
            torch.zeros(1, 3, 8, 8, dtype=torch.uint8).expand(num, 3, 8, 8),
            np.arange(num) % 2,
            ("a", "b"),
            "some",
        )
        for num in (num_train, num_val)
    ]
    return Splits(sources[0], sources[1], "some")


@pytest.mark.parametrize(
    ("top1", "num", "interval"),
    [
        (98.33, 360, (96.41, 99.23)),
        (50, 360, (44.86, 55.14)),
        (100, 9, (70.09, 100)),
        (0, 9, (0, 29.91)),
    ],
)
def test_the_interval_is_wilsons(
    top1: float, num: int, interval: tuple[float, float]
) -> None:
    found = confidence_interval(top1, num)
    assert found == pytest.approx(interval, abs=0.01)
    assert margin(top1, num) == pytest.approx((found[1] - found[0]) / 2)


def test_few_images_are_reported(
    tiny: Tiny, cpu: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "forecast", lambda *_: 754.0)
    own = tiny(name="own", data="my photos")
    few, rough, long = advice(own, cpu, TEAM, splits(120, 360), 0)
    assert few.startswith("120 images are few to train from scratch")
    assert few.endswith("t2t train --data 'my photos' --from builtin")
    assert rough.startswith("360 validation images: the 95 % confidence interval")
    assert "± 5.1 points at an accuracy of 50 %, ± 2.3 at 95 %" in rough
    assert long == "Estimated time: 13 min 00 s on cpu."
    assert advice(own, cpu, TEAM, splits(5000, 1000), 0) == [long]
    tuned = replace(own, weights="builtin")
    assert advice(tuned, cpu, TEAM, splits(120, 1000), 0) == [long]
    assert advice(tiny(), cpu, TEAM, splits(120, 1000), 0) == [long]
    half = advice(tiny(), cpu, TEAM, splits(160, 1000), 20)
    assert half == ["Estimated time: 6 min 00 s on cpu."]


def test_work_is_counted_by_phases(tiny: Tiny) -> None:
    recipe = tiny(token_dropping=TokenDropping(keep=0.5, until=0.5))
    assert remaining_work(recipe, 0, 40) == pytest.approx(1)
    assert remaining_work(recipe, 20, 40) == pytest.approx(0.5 / (0.5 + 0.5 * 0.625))
    assert remaining_work(recipe, 40, 40) == 0


def test_a_forecast_changes_nothing_and_stops_nothing(
    tiny: Tiny, cpu: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = resolve_runtime(cpu, TEAM)
    recipe = tiny(random=True, weights="not read")
    before = torch.random.get_rng_state()
    seconds = forecast(recipe, runtime, TEAM, 48, 16)
    assert seconds is not None
    assert 0 < seconds < 60
    assert torch.equal(torch.random.get_rng_state(), before)
    many = World(0, 2, torch.device("cpu"))
    assert forecast(recipe, runtime, many, 48, 16) is None

    def broken(*_: object) -> float:
        raise RuntimeError("no")

    monkeypatch.setattr(module, "step_seconds", broken)
    assert forecast(recipe, runtime, TEAM, 48, 16) is None
    train(tiny(), folder=tmp_path, runtime=cpu, quiet=True)
    assert "Estimated time: " not in (tmp_path / "log.txt").read_text()


@pytest.mark.parametrize(
    ("seconds", "reported"),
    [
        (0.2, "1 s"),
        (7.4, "7 s"),
        (62, "60 s"),
        (754, "13 min 00 s"),
        (40_000, "11 h 00 min"),
    ],
)
def test_a_forecast_says_no_more_than_it_knows(seconds: float, reported: str) -> None:
    assert rounded(seconds) == reported


def test_photographs_seen_as_small_images_are_noted(tiny: Tiny, tmp_path: Path) -> None:
    for number in range(6):
        folder = tmp_path / "ab"[number % 2]
        folder.mkdir(exist_ok=True)
        Image.new("RGB", (120, 90)).save(folder / f"{number}.jpg")
    source = open_splits(tmp_path).train
    (note,) = size_notes(tiny(image_size=(32, 32)), source)
    assert note.startswith("The images have about 90 pixels a side, and this run sees")
    assert note.endswith("with a model for it (t2t models).")
    (note,) = size_notes(tiny(image_size=(32, 32), weights="builtin"), source)
    assert note.endswith("for more detail, add --image-size 64, which takes more time.")
    assert size_notes(tiny(image_size=(64, 64)), source) == []
    assert size_notes(tiny(image_size=(96, 96)), source) == []
    with pytest.raises(UserError, match="16 is more than the 4 images to train on"):
        estimate(tiny(data=str(tmp_path)), Runtime(device="cpu"))
