"""Adds a teacher to a recipe."""

from dataclasses import replace

from t2t.errors import UserError, choose
from t2t.models.zoo import CONFIGS
from t2t.training.recipe import Recipe

TASK = "distill_"
TOKEN = {"distilled": True, "class_token": True, "pool": "class"}
"""Options of a model with a distillation token."""


def with_teacher(
    recipe: Recipe, teacher: str | None, kind: str | None, *, token: bool
) -> Recipe:
    """The recipe as a distillation from a teacher.

    A student with a distillation token learns from the teacher by it, and by default
    hard labels, as DeiT; any other student by default the teacher's probabilities.
    """
    if teacher is None and kind is None and not token:
        return recipe
    is_distillation = recipe.task.startswith(TASK)
    if recipe.task != "classify" and not is_distillation:
        raise UserError(
            f"{recipe.name} has task={recipe.task}, which takes no teacher; leave out "
            "--teacher, --distill and --distill-token."
        )
    if teacher is None and not recipe.task_args.get("teacher"):
        option = "--distill-token" if kind is None else f"--distill {kind}"
        raise UserError(
            f"{option} needs a teacher: add --teacher with a run folder, weights or "
            "the name of a timm model."
        )
    if token:
        recipe = with_token(recipe)
    has_token = bool(recipe.model_args.get("distilled", is_distilled(recipe.model)))
    if kind is None and is_distillation:
        kind = recipe.task.rpartition("_")[2]
    kind = kind or ("hard" if has_token else "soft")
    choose("distill", kind, {"soft": 0, "hard": 0})
    task_args = dict(recipe.task_args)
    if teacher is not None:
        task_args["teacher"] = teacher
    task = f"{TASK}token_{kind}" if has_token else f"{TASK}{kind}"
    return replace(recipe, task=task, task_args=task_args)


def is_distilled(model: str) -> bool:
    """Whether a model of that name has a distillation token."""
    return model in CONFIGS and CONFIGS[model].distilled


def with_token(recipe: Recipe) -> Recipe:
    """The recipe with a distillation token in its model."""
    if recipe.model not in CONFIGS:
        raise UserError(
            f"--distill-token adds a token to models of t2t, and {recipe.model} is "
            "built by timm; leave it out."
        )
    if recipe.weights is not None and not recipe.model_args.get(
        "distilled", is_distilled(recipe.model)
    ):
        raise UserError(
            f"--distill-token adds a token that the weights {recipe.weights} do not "
            "have; leave it out, or start from weights of a distilled model."
        )
    return replace(recipe, model_args={**recipe.model_args, **TOKEN})
