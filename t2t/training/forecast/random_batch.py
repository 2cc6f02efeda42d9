"""A batch of noise, for steps that are only timed or counted."""

import torch

from t2t.data.sampler import Batch, TrainingSampler
from t2t.training.recipe import Recipe


def random_batch(recipe: Recipe, world_size: int, num_classes: int) -> Batch:
    """The main process's share of a step, with noise for images."""
    size = recipe.batch_size
    sampler = TrainingSampler(num_images=size, batch_size=size, world_size=world_size)
    chosen = sampler.slots(0)
    share = len(chosen.indices)
    shape = (share, recipe.channels, *recipe.image_size)
    indices = torch.from_numpy(chosen.indices.copy())
    return Batch(
        views=(torch.randint(0, 256, shape, dtype=torch.uint8),),
        labels=torch.randint(0, num_classes, (share,)),
        indices=indices,
        keys=indices,
        valid=torch.ones(share, dtype=torch.bool),
    )
