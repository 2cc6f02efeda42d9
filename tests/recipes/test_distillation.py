"""The options that make a recipe a distillation."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from t2t.errors import UserError
from t2t.recipes import find_recipe
from t2t.recipes.choose import RecipeOptions, choose_recipe
from t2t.training.recipe import Recipe

Tiny = Callable[..., Recipe]
TOKEN = {"distilled": True, "class_token": True, "pool": "class"}


def chosen(recipe: Recipe | str, *words: str, **options: object) -> Recipe:
    return choose_recipe(recipe, RecipeOptions(**options), words)[0]


@pytest.mark.parametrize(
    ("options", "task"),
    [
        ({}, "distill_soft"),
        ({"distill": "hard"}, "distill_hard"),
        ({"distill_token": True}, "distill_token_hard"),
        ({"distill_token": True, "distill": "soft"}, "distill_token_soft"),
    ],
)
def test_options_choose_the_task(
    options: dict[str, object], task: str, tiny: Tiny
) -> None:
    recipe = chosen(tiny(), teacher="runs/large", **options)
    assert (recipe.task, recipe.task_args) == (task, {"teacher": "runs/large"})
    assert (recipe.model_args.items() >= TOKEN.items()) == ("token" in task)


def test_a_model_with_a_token_uses_it(tiny: Tiny) -> None:
    words = [f"model_args.{name}={value}" for name, value in TOKEN.items()]
    recipe = chosen(tiny(), *words, teacher="x", distill="soft")
    assert recipe.task == "distill_token_soft"


def test_settings_of_the_task_are_kept(tiny: Tiny) -> None:
    words = ("task_args.temperature=3", "task_args.weight=0.5")
    recipe = chosen(tiny(), *words, teacher="x")
    assert recipe.task_args == {"teacher": "x", "temperature": 3, "weight": 0.5}
    again = chosen(recipe, teacher="y")
    assert again.task_args == {**recipe.task_args, "teacher": "y"}
    by_setting = chosen(tiny(), "task_args.teacher=z", distill="hard")
    assert by_setting.task_args == {"teacher": "z"}


@pytest.mark.parametrize("size", [7, 12, 14])
def test_distilled_models_learn_from_deits_teacher(size: int) -> None:
    recipe = find_recipe(f"imagenet.t2t_vit_{size}_distilled")
    assert recipe.task == "distill_token_hard"
    assert recipe.task_args == {"teacher": "regnety_160.deit_in1k"}
    soft = chosen(recipe, teacher="runs/large", distill="soft")
    assert soft.task == "distill_token_soft"
    assert chosen(recipe, teacher="runs/large").task == "distill_token_hard"
    plain = find_recipe(f"imagenet.t2t_vit_{size}")
    assert (plain.task, plain.task_args) == ("classify", {})


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"distill": "soft"}, "--distill soft needs a teacher: add --teacher"),
        ({"distill_token": True}, "--distill-token needs a teacher"),
        ({"teacher": "x", "distill": "medium"}, "distill='medium' is not known"),
    ],
)
def test_mistakes_are_named(
    options: dict[str, object], sentence: str, tiny: Tiny
) -> None:
    with pytest.raises(UserError, match=sentence):
        chosen(tiny(), **options)


def test_what_has_no_token_gets_none(tiny: Tiny) -> None:
    timm = replace(tiny(), model="test_vit", model_args={})
    with pytest.raises(UserError, match="test_vit is built by timm"):
        chosen(timm, teacher="x", distill_token=True)
    with pytest.raises(UserError, match="that the weights builtin do not have"):
        chosen(tiny(), teacher="x", distill_token=True, weights="builtin")
    other = replace(tiny(), task="my_own")
    with pytest.raises(UserError, match="has task=my_own, which takes no teacher"):
        chosen(other, teacher="x")
