"""Recipes in a user's own file, named FILE.py:NAME."""

import inspect
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from t2t.errors import UserError, suggest
from t2t.training.recipe import Recipe
from t2t.user_code import describe_error, load_code

NAMED = re.compile(r"(?P<file>.*\.py)(?::(?P<name>.*))?", re.DOTALL)


def is_in_file(name: str) -> bool:
    """Whether a recipe's name is of the form FILE.py or FILE.py:NAME."""
    return NAMED.fullmatch(name) is not None


def recipe_in_file(word: str, taken: Callable[[str], bool]) -> Recipe:
    """The recipe of FILE.py:NAME, a Recipe or a function that returns one.

    If its name is `taken` by a built-in recipe that it was derived from, it becomes
    FILE.NAME.
    """
    file, name = file_and_name(word)
    module = load_code(file)
    found = recipes_in(module, file)
    first = next(iter(found))
    if not name and len(found) > 1:
        raise UserError(
            f"{file} holds {', '.join(found)}: name one, as in {file}:{first}."
        )
    name = name or first
    if name not in vars(module):
        hint = suggest(name, found) or f" It holds: {', '.join(found)}."
        raise UserError(f"{file} has no recipe {name!r}.{hint}")
    recipe = called(vars(module)[name], f"{file}:{name}", module)
    if taken(recipe.name):
        recipe = replace(recipe, name=f"{Path(file).stem}.{name}")
    return recipe


def file_and_name(word: str) -> tuple[str, str | None]:
    """The parts of FILE.py:NAME; None for the name of FILE.py."""
    match = NAMED.fullmatch(word)
    assert match is not None
    return match["file"], match["name"]


def recipes_in(module: ModuleType, file: str) -> dict[str, Any]:
    """What may be recipes: Recipes, and functions of the file without arguments."""
    found = {
        name: value
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (
            isinstance(value, Recipe)
            or (
                isinstance(value, FunctionType)
                and value.__module__ == module.__name__
                and not needs_arguments(value)
            )
        )
    }
    if not found:
        raise UserError(
            f"{file} holds no recipe: define a function without arguments that returns "
            "a t2t.Recipe."
        )
    return found


def needs_arguments(function: FunctionType) -> bool:
    """Whether a function cannot be called without arguments."""
    return any(
        each.default is each.empty
        and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
        for each in inspect.signature(function).parameters.values()
    )


def called(value: Any, word: str, module: ModuleType) -> Recipe:
    """The recipe that a value of a file is, or returns."""
    if isinstance(value, FunctionType):
        if needs_arguments(value):
            raise UserError(
                f"{word} needs arguments {inspect.signature(value)}: a recipe is a "
                "function without arguments."
            )
        try:
            value = value()
        except (Exception, SystemExit) as error:
            raise UserError(f"{word}{describe_error(error, module)}") from error
    if not isinstance(value, Recipe):
        raise UserError(
            f"{word} is a {type(value).__name__}, not a t2t.Recipe or a function that "
            "returns one."
        )
    return value
