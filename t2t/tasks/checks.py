"""Checks of tasks: what a class must have, and what its methods must return."""

from collections.abc import Iterable
from dataclasses import is_dataclass
from typing import Any

import torch
from torch import Tensor

from t2t.data.crops import CenterCrop, RandomCrop
from t2t.errors import UserError
from t2t.registry import check_methods
from t2t.shapes import Pixels
from t2t.tasks.base import Crops, Metric, Numbers, Task, Views

LOGGED = frozenset(
    (
        "step",
        "epoch",
        "num_images",
        "gradient_norm",
        "lr",
        "images_per_second",
        "train_seconds",
        "compile_seconds",
    )
)
"""What training itself writes into the rows of metrics.jsonl."""
SUMMARIZED = frozenset(
    (
        "recipe",
        "task",
        "data",
        "model",
        "parameters",
        "epochs",
        "seed",
        "steps",
        "skipped_steps",
        "metric",
        "keep",
        "best_epoch",
        "best_score",
        "last_epoch",
        "last_score",
        "stopped_early",
        "train_minutes",
        "compile_minutes",
        "first_step_seconds",
        "longest_pause_seconds",
        "total_seconds",
        "compiled_from_step",
        "images_per_second",
        "device",
        "command",
    )
)
"""What training itself writes into result.json."""


def check_class(name: str, kind: Any) -> None:
    """Raises an error if a class cannot be a task."""
    if not (isinstance(kind, type) and issubclass(kind, Task)):
        shown = kind.__name__ if isinstance(kind, type) else type(kind).__name__
        raise UserError(
            f"task {name!r} is a {shown}, not a class derived from t2t.Task or "
            "t2t.Classify."
        )
    for method in ("views", "forward", "score"):
        if getattr(kind, method) is getattr(Task, method):
            raise UserError(f"task {name!r} does not define {method}: add it.")
    check_methods(f"task {name!r}", kind, Task)
    if not (isinstance(kind.Args, type) and is_dataclass(kind.Args)):
        raise UserError(
            f"task {name!r} has Args = {kind.Args!r}, which must be a dataclass."
        )
    metrics = kind.metrics if isinstance(kind.metrics, tuple | list) else ()
    if not metrics or not all(isinstance(each, Metric) for each in metrics):
        raise UserError(
            f"task {name!r} has metrics = {kind.metrics!r}; name what its score "
            "returns, as in metrics = (t2t.Metric('val_loss', 'validation loss'),)."
        )
    for metric in metrics:
        check_free(f"task {name!r} has a metric", metric.name, LOGGED | SUMMARIZED)


def check_free(what: str, name: str, taken: Iterable[str]) -> None:
    """Raises an error if training itself writes a number of that name."""
    if name in taken:
        raise UserError(
            f"{what} named {name!r}, as training names a number of its own; choose "
            "another name."
        )


def check_parameters(task: Task) -> None:
    """Raises an error for parameters that no module of the task holds."""
    for name, _ in task.named_parameters(recurse=False):
        raise UserError(
            f"{type(task).__name__}.{name} is a parameter of the task itself, which is "
            "not trained; put it into a module, such as nn.ParameterList, that is an "
            "attribute of the task."
        )


def checked_crops(task: Task, crops: Any) -> Crops:
    """What `Task.crops` returns, one crop or more."""
    given = crops if isinstance(crops, tuple | list) else ()
    if not given or not all(
        isinstance(each, RandomCrop | CenterCrop) for each in given
    ):
        raise UserError(
            f"{type(task).__name__}.crops returns {crops!r}; it must return a tuple of "
            "one crop or more, such as (crop, crop)."
        )
    return tuple(given)


def checked_views(task: Task, views: Any, num_images: int) -> Views:
    """What `Task.views` returns: tensors with a row per image."""
    what = f"{type(task).__name__}.views"
    return checked_rows(what, views, num_images)


def checked_rows(what: str, values: Any, num_images: int) -> Views:
    """A dict of tensors with a row per image."""
    if not isinstance(values, dict) or not values:
        raise UserError(
            f"{what} returns {kind_of(values)}; it must return a dict of tensors, each "
            "with a row per image."
        )
    for name, value in values.items():
        if not isinstance(value, Tensor) or value.shape[:1] != (num_images,):
            raise UserError(
                f"{what} returns {kind_of(value)} as {name!r}; it must be a tensor "
                f"with a row for each of the {num_images} images."
            )
    return values


def checked_numbers(task: Task, numbers: Any) -> Numbers:
    """What `Task.forward` returns: scalars by name, with a `loss` to minimise."""
    what = f"{type(task).__name__}.forward"
    if not isinstance(numbers, dict) or "loss" not in numbers:
        raise UserError(
            f"{what} returns {kind_of(numbers)}; it must return a dict with "
            "'loss', the mean over the images that training minimises."
        )
    for name, value in numbers.items():
        check_free(f"{what} returns a number", name, LOGGED)
        if not isinstance(value, Tensor) or value.ndim:
            raise UserError(
                f"{what} returns {kind_of(value)} as {name!r}; it must be a tensor "
                "with a single number, such as a mean over the images."
            )
    if not numbers["loss"].requires_grad:
        raise UserError(
            f"{what} returns a loss that no trained weight has a part in; compute it "
            "from the model's output, without detach() and no_grad()."
        )
    return numbers


def checked_metrics(task: Task, values: Views) -> dict[str, float]:
    """The metrics that `Task.summarize` returns."""
    found = task.summarize(values)
    what = f"{type(task).__name__}.summarize"
    if not isinstance(found, dict):
        raise UserError(f"{what} returns {kind_of(found)}, not a dict of metrics.")
    for metric in task.metrics_for(task.context.has_labels):
        if metric.name not in found:
            raise UserError(f"{what} returns no {metric.name!r}, a metric of the task.")
    for name, value in found.items():
        check_free(f"{what} returns a metric", name, LOGGED)
        if not isinstance(value, int | float):
            raise UserError(
                f"{what} returns {kind_of(value)} as {name!r}, not a number; use "
                ".item()."
            )
    return found


def checked_warning(kind: type[Task], sentence: Any) -> str:
    """What `Task.warning` returns: a sentence, empty if there is nothing to say."""
    if not isinstance(sentence, str):
        raise UserError(
            f"{kind.__name__}.warning returns {kind_of(sentence)}; it must return a "
            "sentence, or '' if there is nothing to say."
        )
    return sentence


def checked_pictures(task: Task, pictures: Any, num_images: int) -> dict[str, Pixels]:
    """What `Task.pictures` returns: uint8 images by title, one for each image."""
    what = f"{type(task).__name__}.pictures"
    if pictures == {}:
        return {}
    for title, images in checked_rows(what, pictures, num_images).items():
        if images.dtype != torch.uint8 or images.ndim != 4:
            raise UserError(
                f"{what} returns {images.dtype} of shape {tuple(images.shape)} as "
                f"{title!r}; it must return torch.uint8 of shape (images, channels, "
                "height, width)."
            )
    return pictures


def kind_of(value: Any) -> str:
    """What a value is, with the shape of a tensor."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, dict) and not value:
        return "an empty dict"
    if isinstance(value, dict):
        return f"a dict of {', '.join(map(str, value))}"
    return "None" if value is None else f"a {type(value).__name__}"
