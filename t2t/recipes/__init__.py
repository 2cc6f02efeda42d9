"""Named runs: functions that return a frozen Recipe, named MODULE.FUNCTION."""

import importlib
import inspect
from collections.abc import Callable
from pathlib import Path

from t2t.errors import UserError, suggest
from t2t.recipes.from_file import (
    file_and_name,
    is_in_file,
    recipe_in_file,
    recipes_in,
)
from t2t.training.recipe import Recipe
from t2t.user_code import load_code

MODULES = (
    "digits",
    "cifar10",
    "cifar100",
    "tiny_imagenet",
    "photos",
    "imagenet",
    "transfer",
    "pretrain",
)


def all_recipes() -> dict[str, Callable[[], Recipe]]:
    """Every recipe by its name."""
    found: dict[str, Callable[[], Recipe]] = {}
    for part in MODULES:
        module = importlib.import_module(f"t2t.recipes.{part}")
        for name, function in module.RECIPES.items():
            found[f"{part}.{name}"] = function
    return found


def find_recipe(name: str) -> Recipe:
    """The recipe of that name, or of FILE.py:NAME; a module alone means its first."""
    recipes = all_recipes()
    if is_in_file(name):
        return recipe_in_file(name, recipes.__contains__)
    if name in MODULES:
        name = next(each for each in recipes if each.startswith(f"{name}."))
    if name not in recipes:
        module, _, function = name.partition(":")
        hint = suggest(name, recipes) or " `t2t recipes` lists them."
        if function and Path(f"{module}.py").exists():
            hint = f" Did you mean {module}.py:{function}?"
        raise UserError(f"There is no recipe {name!r}.{hint}")
    return recipes[name]()


def recipes_of_file(word: str) -> dict[str, str]:
    """The first sentence about each recipe of FILE.py, by FILE.py:NAME.

    No function is called: one that returns no recipe could do anything.
    """
    file, _ = file_and_name(word)
    return {
        f"{file}:{name}": about(value) if inspect.isfunction(value) else ""
        for name, value in recipes_in(load_code(file), file).items()
    }


def about(function: Callable[[], Recipe]) -> str:
    """The first sentence of a recipe's docstring."""
    return (inspect.getdoc(function) or "").partition("\n")[0]
