"""Where the labels of a recipe's images are, and the task that suits them."""

from contextlib import suppress
from dataclasses import replace

from t2t.data.sources.find_splits import find_splits
from t2t.errors import UserError
from t2t.tasks import task_class
from t2t.training.recipe import Recipe

SINGLE, SEVERAL = "classify", "multilabel"


def with_labels_found(recipe: Recipe) -> tuple[Recipe, list[str]]:
    """The recipe with the table and the columns of its labels, and a note on the task.

    So its run can be repeated after other tables were put beside. Images with several
    labels are learned by another task.
    """
    task, config = task_class(recipe.task), recipe.labels
    if config.several is not None:  # a run's own
        return recipe, []
    if task.takes_label_sets:
        config = replace(config, several=True)
    notes: list[str] = []
    with suppress(UserError):  # which is raised where the images are opened
        found = find_splits(recipe.data, task.needs_labels, config)
        config, notes = found.label_config, [*found.notes]
    if config == recipe.labels:
        return recipe, []
    if config.several and recipe.task == SINGLE:
        notes.append(
            "Images have several labels, so task=multilabel: the model gives a "
            "probability for every class, and is scored by mean average precision."
        )
        recipe = replace(recipe, task=SEVERAL)
    return replace(recipe, labels=config), notes
