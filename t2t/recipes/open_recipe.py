"""Open a recipe by what a user calls it: a name, a file, a run folder."""

import shlex
from dataclasses import replace
from pathlib import Path

from t2t.errors import UserError
from t2t.models.config import Size
from t2t.recipes import MODULES, all_recipes, find_recipe
from t2t.recipes.default import default_recipe
from t2t.recipes.from_file import is_in_file
from t2t.training.recipe import Recipe

DEFAULT = "digits"
"""The recipe if none is named."""


def open_recipe(
    name: str,
    data: str | None = None,
    model: str | None = None,
    epochs: int | None = None,
    image_size: Size | None = None,
) -> Recipe:
    """The recipe of a name, FILE.py:NAME, a JSON file or a run folder, with `data`.

    For the default recipe with other data it is one that suits the images, the model,
    the epochs and the image size.
    """
    path = Path(name).expanduser()
    if name.endswith(".json") or (path / "recipe.json").exists():
        recipe = read_file(path)
    elif is_in_file(name):
        recipe = find_recipe(name)
    elif name == DEFAULT and data not in (None, DEFAULT):
        recipe = default_recipe(data, model, epochs, image_size=image_size)
    elif name not in {*all_recipes(), *MODULES} and path.exists():
        raise UserError(
            f"There is no recipe {name!r}, but files of that name: did you mean "
            f"t2t train --data {shlex.quote(name)}?"
        )
    else:
        recipe = find_recipe(name)
    return recipe if data is None else replace(recipe, data=data)


def read_file(path: Path) -> Recipe:
    """The recipe in a JSON file, or in the run folder at `path`."""
    from t2t.training.run_files import RECIPE
    from t2t.training.saved_run import read_recipe_file

    path = path / RECIPE if path.is_dir() else path
    if not path.exists():
        raise UserError(f"There is no recipe {path}; `t2t recipes` lists names.")
    return read_recipe_file(path)
