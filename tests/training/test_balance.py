"""Runs on uneven classes: what is said, logged and repeated bit for bit."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from run_assertions import assert_model_saved, untimed_rows
from safetensors.torch import load_file

from t2t.data.sources import Splits, open_splits
from t2t.training.forecast.advice import balance_notes
from t2t.training.recipe import Recipe
from t2t.training.runtime import Runtime
from t2t.training.train import train

Tiny = Callable[..., Recipe]


@pytest.mark.parametrize("balance", ["sampling", "weights"])
def test_a_stopped_run_goes_on_bit_for_bit(
    balance: str,
    uneven: Path,
    tiny: Tiny,
    cpu: Runtime,
    tmp_path: Path,
    interrupt_after: Callable[[int | None], None],
) -> None:
    recipe = tiny(data=str(uneven), random=True, balance=balance, repeats=2)
    folders = [tmp_path / each for each in ("whole", "stopped")]
    train(recipe, folder=folders[0], runtime=cpu, quiet=True)
    for step in (5, None):
        interrupt_after(step)
        train(recipe, folder=folders[1], runtime=cpu, quiet=True)
    assert_model_saved(folders[1], load_file(folders[0] / "model.safetensors"))
    assert untimed_rows(folders[1]) == untimed_rows(folders[0])
    # It is another run than an unbalanced one, of as many steps.
    plain = tmp_path / "plain"
    train(
        tiny(data=str(uneven), random=True, repeats=2),
        folder=plain,
        runtime=cpu,
        quiet=True,
    )
    ours, theirs = (
        load_file(each / "model.safetensors") for each in (folders[0], plain)
    )
    assert any(not torch.equal(ours[name], theirs[name]) for name in theirs)
    results = [json.loads((f / "result.json").read_text()) for f in (folders[0], plain)]
    assert results[0]["steps"] == results[1]["steps"] == 8


def test_macro_accuracy_is_shown_where_it_is_not_top_1(
    uneven: Path,
    tiny: Tiny,
    cpu: Runtime,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    result = train(tiny(data=str(uneven), epochs=2), folder=tmp_path / "a", runtime=cpu)
    assert "macro accuracy" in capsys.readouterr().out
    assert 0 <= result.summary["macro_accuracy"] <= 100
    rows = [row for row in untimed_rows(tmp_path / "a") if "top1" in row]
    assert all("macro_accuracy_raw" in row for row in rows)
    train(tiny(epochs=2), folder=tmp_path / "b", runtime=cpu)
    assert "macro accuracy" not in capsys.readouterr().out
    rows = [row for row in untimed_rows(tmp_path / "b") if "top1" in row]
    assert all("macro_accuracy" in row for row in rows)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({}, "16 images of 'a', 3 of 'c' (5.33 to 1)"),
        ({}, "--balance sampling (shows small classes more often) or --balance weig"),
        ({"balance": "sampling"}, "of 'c' (3 images) is shown "),
        ({"balance": "weights", "balance_power": 1.0}, "counts 3.9 times in the loss"),
    ],
)
def test_uneven_classes_are_reported(
    settings: dict[str, Any], sentence: str, uneven: Path, tiny: Tiny
) -> None:
    recipe = tiny(data=str(uneven), **settings)
    (note,) = balance_notes(recipe, open_splits(uneven).train)
    assert sentence in note


def test_even_classes_are_not_reported(images: Path, tiny: Tiny) -> None:
    splits: Splits = open_splits(images)
    assert balance_notes(tiny(), splits.train) == []
    (note,) = balance_notes(tiny(balance="weights"), splits.train)
    assert "about even (16 to 16 images), so --balance weights changes little" in note
    assert balance_notes(tiny(task="simclr"), splits.train) == []
