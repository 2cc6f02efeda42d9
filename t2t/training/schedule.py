"""The learning rate of every step."""

import math

from torch.optim import Optimizer

from t2t.training.optim import all_groups
from t2t.training.recipe import Schedule


def lr_factor(schedule: Schedule, epoch: float, epochs: int) -> float:
    """The learning rate at a fractional epoch, relative to its peak."""
    if schedule.update_every == "epoch":
        epoch = math.floor(epoch)
    if epoch < schedule.warmup_epochs:
        rise = epoch / schedule.warmup_epochs
        return schedule.start + (1 - schedule.start) * rise
    first = schedule.warmup_epochs if schedule.warmup_prefix else 0.0
    moving = epochs - schedule.floor_epochs - first
    progress = min(1.0, (epoch - first) / moving) if moving > 0 else 1.0
    remaining = {
        "cosine": (1 + math.cos(math.pi * progress)) / 2,
        "linear": 1 - progress,
        "constant": 1.0,
    }[schedule.name]
    return schedule.floor + (1 - schedule.floor) * remaining


def set_lr(optimizers: list[Optimizer], factor: float) -> None:
    """Sets the learning rate of every group to a multiple of its peak."""
    for group in all_groups(optimizers):
        group["lr"] = group["peak"] * factor
