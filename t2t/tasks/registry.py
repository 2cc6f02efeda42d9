"""Tasks by name."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from torch import nn

from t2t.config import from_json
from t2t.errors import UserError
from t2t.registry import Registry
from t2t.tasks.base import Metric, Task, TaskContext
from t2t.tasks.byol import BYOL
from t2t.tasks.checks import check_class, check_parameters
from t2t.tasks.classify import Classify
from t2t.tasks.dino import DINO
from t2t.tasks.distill import (
    DistillHard,
    DistillSoft,
    DistillTokenHard,
    DistillTokenSoft,
)
from t2t.tasks.masked_autoencoder import MaskedAutoencoder
from t2t.tasks.masked_patches import MaskedPatches
from t2t.tasks.moco_v3 import MoCoV3
from t2t.tasks.multilabel import Multilabel
from t2t.tasks.simclr import SimCLR

TASKS: Registry[type[Task]] = Registry(
    "task",
    {
        "classify": Classify,
        "multilabel": Multilabel,
        "distill_soft": DistillSoft,
        "distill_hard": DistillHard,
        "distill_token_soft": DistillTokenSoft,
        "distill_token_hard": DistillTokenHard,
        "masked_patches": MaskedPatches,
        "masked_autoencoder": MaskedAutoencoder,
        "simclr": SimCLR,
        "byol": BYOL,
        "moco_v3": MoCoV3,
        "dino": DINO,
    },
)
task_class = TASKS.choose
Added = TypeVar("Added", bound=type[Task])


def register_task(name: str) -> Callable[[Added], Added]:
    """A decorator that adds a class derived from Task under a name that is free."""
    TASKS.check_name(name)

    def add(kind: Added) -> Added:
        check_class(name, kind)
        return TASKS.register(name)(kind)

    return add


def primary_metric(task: str, name: str | None = None) -> Metric:
    """The first metric of a task; for a finished run, that of the name in its result.

    Data without labels may have another one than data with labels.
    """
    metrics = task_class(task).metrics
    return next((each for each in metrics if each.name == name), metrics[0])


def read_args(name: str, args: Mapping[str, Any]) -> Any:
    """The settings of a task from a recipe's `task_args`."""
    kind = task_class(name).Args
    known = getattr(kind, "__dataclass_fields__", {})
    for key in args:
        if key not in known:
            allowed = f"it has {', '.join(known)}" if known else "it has none"
            raise UserError(f"task={name} has no setting task_args.{key}; {allowed}.")
    return from_json(kind, dict(args))


def build_task(
    name: str, args: Mapping[str, Any], model: nn.Module, context: TaskContext
) -> Task:
    """The task of a recipe around its model."""
    task = TASKS.build(name, Task, model, context, read_args(name, args))
    check_parameters(task)
    return task
