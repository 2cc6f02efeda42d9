"""Tasks by name."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from torch import nn

from t2t.config import from_json
from t2t.errors import UserError, choose
from t2t.tasks.base import Task, TaskContext
from t2t.tasks.classify import Classify
from t2t.tasks.distill import DistillSoft, DistillTokenHard, DistillTokenSoft

AnyTask = TypeVar("AnyTask", bound=type[Task])

TASKS: dict[str, type[Task]] = {
    "classify": Classify,
    "distill_soft": DistillSoft,
    "distill_token_soft": DistillTokenSoft,
    "distill_token_hard": DistillTokenHard,
}


def register_task(name: str) -> Callable[[AnyTask], AnyTask]:
    """A decorator that adds a task under a name, for a recipe's `task`."""

    def add(task: AnyTask) -> AnyTask:
        if TASKS.get(name, task) is not task:
            raise UserError(f"There is a task {name!r} already; choose another name.")
        TASKS[name] = task
        return task

    return add


def task_class(name: str) -> type[Task]:
    """The task of that name."""
    return choose("task", name, TASKS)


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
    return task_class(name)(model, context, read_args(name, args))
