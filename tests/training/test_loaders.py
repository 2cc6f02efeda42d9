"""Batches are those that a recipe names."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from t2t.data.batches import LoaderOptions
from t2t.data.crops import CenterCrop, RandomCrop
from t2t.training import loaders
from t2t.training.distributed import World
from t2t.training.recipe import CropConfig, Recipe


def test_batches_are_opened_by_the_recipe(
    tiny: Callable[..., Recipe], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[dict[str, Any]] = []
    for name in ("open_batches", "evaluation_batches"):
        monkeypatch.setattr(
            loaders, name, lambda source, **given: opened.append({**given})
        )
    boxes = {"scale": (0.2, 0.5), "ratio": (0.9, 1.2), "interpolation": "bicubic"}
    crop = CropConfig(kind="random", evaluation_fraction=0.7, **boxes)  # type: ignore[arg-type]
    recipe = tiny(crop=crop, repeats=3, seed=5)
    source = loaders.open_data(recipe).train
    given = (World(1, 2, torch.device("cpu")), LoaderOptions())
    loaders.training_batches(recipe, source, *given)
    loaders.validation_batches(recipe, source, *given)
    loaders.validation_batches(recipe, source, *given, micro_batch=4)
    whole = replace(recipe, crop=replace(crop, kind="resize"))
    loaders.training_batches(whole, source, *given)
    middle = CenterCrop(size=(8, 8), fraction=0.7)
    assert [each.get("crops") or (each["crop"],) for each in opened] == [
        (RandomCrop(size=(8, 8), **boxes),),  # type: ignore[arg-type]
        (middle,),
        (middle,),
        (middle,),
    ]
    assert [each["batch_size"] for each in opened] == [16, 16, 8, 16]
    assert (opened[0]["repeats"], opened[0]["seed"]) == (3, 5)
    assert {(each["rank"], each["world_size"]) for each in opened} == {(1, 2)}


@pytest.mark.parametrize("number", [0, 12])
def test_what_is_held_out_follows_from_the_seed(
    number: int, tiny: Callable[..., Recipe]
) -> None:
    """Of data in one piece a tenth, or as many as a recipe says."""
    held = []
    for seed in (0, 0, 1):
        data = f"{tiny().data}/train"
        splits = loaders.open_data(tiny(data=data, holdout=number, seed=seed))
        train, val = (
            {source.name(index) for index in range(len(source))}
            for source in (splits.train, splits.val)
        )
        assert len(val) == number or (not number and len(train | val) == 48)
        assert not train & val
        held.append(val)
    assert held[0] == held[1] != held[2]
