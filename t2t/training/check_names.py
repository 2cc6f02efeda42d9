"""Checks what a recipe names and asks of its task, before anything is built."""

from t2t.data.augment.policies import RandAugment
from t2t.errors import UserError
from t2t.tasks.registry import read_args, task_class
from t2t.training.recipe import Recipe


def check_names(recipe: Recipe) -> None:
    """Raises an error for an unknown operation, task or setting of the task."""
    RandAugment.of(recipe.augmentation)
    read_args(recipe.task, recipe.task_args)
    check_balance(recipe)


def check_balance(recipe: Recipe) -> None:
    """Raises an error if the task cannot balance classes as the recipe asks."""
    allowed = task_class(recipe.task).balanced_by
    if recipe.balance is None or recipe.balance in allowed:
        return
    what = f"balance={recipe.balance} cannot be used: task={recipe.task}"
    if allowed:
        raise UserError(
            f"{what} has no class weights in its loss; use --balance {allowed[0]}."
        )
    raise UserError(
        f"{what} does not learn one class per image, so there is nothing to balance; "
        "leave out --balance."
    )
