"""Open a recipe by what a user calls it: a name, a file, a run folder."""

import shlex
from dataclasses import replace
from pathlib import Path

from t2t.data.label_config import NO_LABEL_CONFIG, LabelConfig, differs_from_default
from t2t.data.sources.find_splits import is_named
from t2t.errors import UserError
from t2t.models.config import Size
from t2t.recipes import MODULES, all_recipes, find_recipe
from t2t.recipes.default import default_recipe
from t2t.recipes.from_file import is_in_file
from t2t.training.recipe import Recipe

UNNAMED = "default"
"""Stands for a recipe that suits the data; without data, for that of the digits."""
DIGITS = "digits"


def open_recipe(
    name: str,
    data: str | None = None,
    model: str | None = None,
    labels: LabelConfig = NO_LABEL_CONFIG,
    epochs: int | None = None,
    image_size: Size | None = None,
) -> Recipe:
    """The recipe of a name, FILE.py:NAME, a JSON file or a run folder, with `data`.

    If none is named, it is one that suits the images, the model, the epochs and the
    image size.
    """
    path = Path(name).expanduser()
    if name == UNNAMED and data in (None, DIGITS):
        recipe = find_recipe(DIGITS)
    elif name == UNNAMED and data is not None:
        recipe = default_recipe(
            data, model, labels, epochs=epochs, image_size=image_size
        )
    elif name.endswith(".json") or (path / "recipe.json").exists():
        recipe = read_file(path)
    elif is_in_file(name):
        recipe = find_recipe(name)
    elif name not in {*all_recipes(), *MODULES} and path.exists():
        raise UserError(
            f"There is no recipe {name!r}, but files of that name: did you mean "
            f"t2t train --data {shlex.quote(name)}?"
        )
    else:
        recipe = find_recipe(name)
    return with_data(recipe, data, labels)


def check_is_no_folder(name: str, recipe: Recipe) -> None:
    """Raises an error for a folder of the name of recipes whose data is not here."""
    is_here = is_named(recipe.data) or Path(recipe.data).expanduser().exists()
    if name in MODULES and Path(name).is_dir() and not is_here:
        raise UserError(
            f"{name} names recipes for {recipe.data}, which is not here, and also a "
            f"folder: did you mean t2t train --data {name}?"
        )


def with_data(recipe: Recipe, data: str | None, labels: LabelConfig) -> Recipe:
    """The recipe with other data, or with other labels of its data."""
    is_given = differs_from_default(labels)
    if data is None:
        return replace(recipe, labels=labels) if is_given else recipe
    # The labels of other images are not this data's.
    keeps = data == recipe.data and not is_given
    return replace(recipe, data=data, labels=recipe.labels if keeps else labels)


def read_file(path: Path) -> Recipe:
    """The recipe in a JSON file, or in the run folder at `path`."""
    from t2t.training.run_files import RECIPE
    from t2t.training.saved_run import read_recipe_file

    path = path / RECIPE if path.is_dir() else path
    if not path.exists():
        raise UserError(f"There is no recipe {path}; `t2t recipes` lists names.")
    return read_recipe_file(path)
