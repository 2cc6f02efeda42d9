"""A check of how a task is scored, before training starts."""

import torch

from t2t.errors import UserError
from t2t.tasks.checks import checked_metrics
from t2t.training.distributed import World
from t2t.training.evaluation.evaluate import Normalize, score_models
from t2t.training.forecast.random_batch import random_batch
from t2t.training.recipe import Recipe
from t2t.training.state import TrainState
from t2t.training.step import unchanged_buffers

NUM_IMAGES = 2


def check_scoring(
    recipe: Recipe, state: TrainState, world: World, precision: torch.dtype
) -> None:
    """Evaluates a little noise, so that a mistake in a task costs no epoch."""
    task, model = state.task, state.model
    batch = random_batch(recipe, NUM_IMAGES, task, world.device)
    normalize = Normalize(recipe.augmentation.mean, recipe.augmentation.std)
    with unchanged_buffers(task):
        values = score_models(
            task, {"raw": model}, [batch], normalize, world, precision
        )
    task.train()
    try:
        checked_metrics(task, values["raw"])
    except UserError:
        raise
    except Exception:  # such as a division by zero, which real images may not cause
        return
