"""`t2t recipes`: list the named runs."""

from typing import Annotated

from tyro.conf import Positional

from t2t.commands.options import JsonFlag, option
from t2t.errors import UserError, suggest


def recipes(
    filter: Annotated[
        Positional[str],
        option(
            "Part of a name, such as cifar or t2t_vit_14, or your own FILE.py.",
            "",
            "[FILTER]",
        ),
    ] = "",
    *,
    json: JsonFlag = False,
) -> None:
    """List the recipes, with image size, epochs and batch size.

    Examples:
      t2t recipes
      t2t recipes cifar --json
      t2t recipes my_runs.py
    """
    from t2t.commands.tables import named_table, recipe_table
    from t2t.recipes import about, all_recipes, recipes_of_file
    from t2t.recipes.from_file import is_in_file
    from t2t.screen import print_json, print_page

    if is_in_file(filter):
        found = recipes_of_file(filter)
        if json:
            print_json([{"name": name, "about": text} for name, text in found.items()])
        else:
            print_page(lambda width: named_table(found))
        return
    wanted = filter.lower()
    matching = {name: make for name, make in all_recipes().items() if wanted in name}
    if not matching:
        hint = suggest(wanted, all_recipes()) or " `t2t recipes` lists all."
        raise UserError(f"No recipe has {filter!r} in its name.{hint}")
    rows = [(make(), about(make)) for make in matching.values()]
    if json:
        from t2t.config import to_json

        print_json([to_json(recipe) for recipe, _ in rows])
    else:
        print_page(lambda width: recipe_table(rows, width))
