"""`t2t models`: list the models."""

from typing import Annotated

from tyro.conf import Positional

from t2t.commands.options import JsonFlag, option


def models(
    filter: Annotated[
        Positional[str],
        option("Part of a name or a pattern, like 14 or 't2t*'.", metavar="[FILTER]"),
    ] = "",
    *,
    json: JsonFlag = False,
) -> None:
    """List the models, with their cost and the published results.

    Examples:
      t2t models
      t2t models 't2t*distilled'
      t2t models 14 --json
    """
    from t2t.commands.tables import find_models, model_rows, model_table
    from t2t.screen import print_json, print_page

    found = find_models(filter)
    if json:
        print_json(model_rows(found))
    else:
        print_page(lambda width: model_table(found, width))
