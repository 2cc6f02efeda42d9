"""Tasks by name."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from torch import nn

from t2t.config import from_json
from t2t.errors import UserError
from t2t.registry import Registry
from t2t.tasks.base import Task, TaskContext
from t2t.tasks.checks import check_class, check_parameters
from t2t.tasks.classify import Classify
from t2t.tasks.distill import DistillSoft, DistillTokenHard, DistillTokenSoft

TASKS: Registry[type[Task]] = Registry(
    "task",
    {
        "classify": Classify,
        "distill_soft": DistillSoft,
        "distill_token_soft": DistillTokenSoft,
        "distill_token_hard": DistillTokenHard,
    },
)
task_class = TASKS.choose
Added = TypeVar("Added", bound=type[Task])


def register_task(name: str) -> Callable[[Added], Added]:
    """A decorator that adds a class derived from Task under a name that is free."""

    def add(kind: Added) -> Added:
        check_class(name, kind)
        return TASKS.register(name)(kind)

    return add


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
