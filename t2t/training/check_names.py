"""Checks that what a recipe names is registered, before anything is built."""

from t2t.data.augment.policies import RandAugment
from t2t.tasks.registry import read_args
from t2t.training.recipe import Recipe


def check_names(recipe: Recipe) -> None:
    """Raises an error for an unknown augmentation operation, task or task setting."""
    RandAugment.of(recipe.augmentation)
    read_args(recipe.task, recipe.task_args)
