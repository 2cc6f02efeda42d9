"""A recipe refuses what could not be meant, before anything starts."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from t2t.config import override
from t2t.errors import UserError
from t2t.formatting import counted
from t2t.recipes import find_recipe
from t2t.tasks.registry import read_args
from t2t.training.runtime import Runtime

RECIPE = find_recipe("cifar10.t2t_vit_7")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("schedule.warmup_epochs=-2", r"schedule.warmup_epochs=-2.0 must be 0 or more"),
        ("schedule.floor=2", r"schedule.floor=2.0 must be from 0 to 1"),
        ("ema.decay=2", r"ema.decay=2.0 must be from 0 to below 1"),
        ("ema.decay=1", r"ema.decay=1.0 must be from 0 to below 1"),
        ("crop.scale=[2,3]", r"crop.scale\[1\]=3.0 must be from 0.001 to 1"),
        ("crop.scale=[0.5,0.2]", r"crop.scale\[0\]=0.5 must be from 0.001 to 0.2"),
        ("crop.ratio=[0,1]", r"crop.ratio\[0\]=0.0 must be"),
        ("crop.evaluation_fraction=2", r"evaluation_fraction=2.0 must be from 0.01"),
        (
            "optimizer.betas=0.9,1",
            r"optimizer.betas\[1\]=1.0 must be from 0 to below 1",
        ),
        ("optimizer.lr=1e999", r"optimizer.lr=inf must be 0 or more"),
        ("optimizer.reference_batch_size=0", r"reference_batch_size=0 must be 1 or"),
        ("token_dropping.keep=0", r"token_dropping.keep=0.0 must be from 0.01 to 1"),
        ("seed=-1", r"seed=-1 must be from 0"),
        ("epochs=1000000000", r"epochs=1000000000 must be from 1 to 100000"),
        ("image_size=0", r"image_size=0 must be from 1 to 65535"),
        ("drop_path=1", r"drop_path=1.0 must be from 0 to below 1"),
        ("holdout=-1", r"holdout=-1 must be 0 or more"),
        ("light_augment_share=2", r"light_augment_share=2.0 must be from 0 to 1"),
        ("augmentation.mean=0.5 augmentation.std=0.5", r"give one value per channel"),
        (
            "channels=2",
            r"channels=2 is not supported: images are read as 1 \(gray\), 3 ",
        ),
        (
            "channels=4 augmentation.mean=[0,0,0,0] augmentation.std=[1,1,1,1]",
            r"channels=4 does not allow .* set augmentation.rand_augment=none\.$",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused(words: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        override(RECIPE, words.split())


@pytest.mark.parametrize(
    "name", ["", " ", ".", "..", ".hidden", "../evil", "a/b", "/a", "a\\b", "a\nb"]
)
def test_a_name_is_a_plain_one(name: str) -> None:
    with pytest.raises(UserError, match="must be a plain name"):
        override(RECIPE, [f"name={name}"] if name.strip() else ["name="])
    assert override(RECIPE, ["name=größe 2.b"]).name == "größe 2.b"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"name": 5}, "name=5 is not allowed: name takes a word"),
        ({"epochs": 2.5}, "epochs=2.5 is not allowed: epochs takes a whole number"),
        ({"data": Path("x")}, "data takes a word"),
        ({"model_args": None}, "model_args=null is not allowed"),
        ({"model_args": {"dim": range(3)}}, "model_args.dim is a range, which recipe."),
    ],
)
def test_values_of_another_type_are_refused(
    changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence):
        replace(RECIPE, **changes)


def test_one_number_is_the_side_of_a_square() -> None:
    assert replace(RECIPE, image_size=32).image_size == (32, 32)  # type: ignore[arg-type]


def test_a_task_has_settings_of_its_own() -> None:
    words = ["task_args.teacher=runs/best", "task=distill_soft"]
    recipe = override(RECIPE, words)
    assert recipe.task_args == {"teacher": "runs/best"}
    args = read_args(recipe.task, {"teacher": "runs/best", "temperature": 2})
    assert (args.teacher, args.temperature) == ("runs/best", 2.0)
    with pytest.raises(UserError, match="task=classify has no setting task_args"):
        read_args("classify", recipe.task_args)
    with pytest.raises(
        UserError, match="it has teacher, teacher_model, weight, temperature"
    ):
        read_args("distill_soft", {"temprature": 2})
    with pytest.raises(UserError, match=r"task_args\.temperature=0.0 must be 0.01"):
        read_args("distill_soft", {"temperature": 0})


def test_four_channels_train_without_colours() -> None:
    words = "channels=4 augmentation.mean=[0,0,0,0] augmentation.std=[1,1,1,1]"
    plain = "augmentation.rand_augment=none"
    assert override(RECIPE, [*words.split(), plain]).channels == 4


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ({"workers": 100_000}, "workers=100000 must be from 1 to 1024"),
        ({"workers": 0}, "workers=0 must be from 1 to 1024"),
        ({"micro_batch": 0}, "micro_batch=0 must be 1 or more"),
        ({"max_damaged": "-1"}, "--max-damaged -1 is neither a number"),
    ],
)
def test_a_machine_has_limits(setting: dict[str, int], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        Runtime(**setting)  # type: ignore[arg-type]


def test_one_is_not_several() -> None:
    assert (counted(1, "epoch"), counted(1_200, "step")) == ("1 epoch", "1,200 steps")
