"""A batch of noise, to time steps."""

import torch

from t2t.data.crops import CenterCrop
from t2t.data.sampler import Batch
from t2t.tasks import Task
from t2t.tasks.checks import checked_crops
from t2t.training.recipe import Recipe


def random_batch(
    recipe: Recipe,
    num_images: int,
    task: Task,
    device: torch.device | str = "cpu",
) -> Batch:
    """Random pixels for all views of a task, with random labels."""
    crops = checked_crops(task, task.crops(CenterCrop(size=recipe.image_size)))
    keys = torch.arange(num_images, device=device)
    shapes = [(num_images, recipe.channels, *crop.size) for crop in crops]
    sets = task.context.label_sets
    num_labels = max(task.context.num_classes, 1) if sets is None else len(sets)
    return Batch(
        tuple(
            torch.randint(0, 256, shape, dtype=torch.uint8, device=device)
            for shape in shapes
        ),
        torch.randint(0, num_labels, (num_images,), device=device),
        keys,
        keys,
        torch.ones(num_images, dtype=torch.bool, device=device),
    )
