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
    if recipe.balance is None:
        return
    task = task_class(recipe.task)
    allowed = task.balanced_by if task.needs_labels else ()
    if recipe.balance in allowed:
        return
    if not task.needs_labels:
        why = "learns without classes, so that there is nothing to balance"
    elif not allowed:
        why = "has no single class per image, so that classes cannot be balanced"
    else:
        why = f"has no class weights in its loss, and takes balance={allowed[0]} alone"
    raise UserError(
        f"balance={recipe.balance} cannot be used: task={recipe.task} {why}; "
        + ("leave out --balance." if not allowed else f"use --balance {allowed[0]}.")
    )
