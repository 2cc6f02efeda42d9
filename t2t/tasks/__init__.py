"""Tasks: what a run learns, from the views of a batch to a loss and a score."""

from t2t.tasks.base import Metric, Task, TaskContext
from t2t.tasks.registry import TASKS, build_task, register_task, task_class

__all__ = [
    "TASKS",
    "Metric",
    "Task",
    "TaskContext",
    "build_task",
    "register_task",
    "task_class",
]
