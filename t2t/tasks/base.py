"""A task: what a run learns, with its own modules, its loss and its metrics."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from t2t.data.augment.config import Augmentation
from t2t.data.crops import CenterCrop, RandomCrop
from t2t.data.rng import CounterRng
from t2t.errors import UserError
from t2t.shapes import Images, Labels, Pixels

Views = dict[str, Tensor]
"""Tensors by name, each with one row per image."""
Numbers = dict[str, Tensor]
"""Scalars by name."""
Crops = tuple[RandomCrop | CenterCrop, ...]


@dataclass(frozen=True)
class Metric:
    """A number that an evaluation gives, and how to show it."""

    name: str
    """Its key in metrics.jsonl and result.json."""
    label: str
    unit: str = ""
    digits: int = 2
    higher_is_better: bool = True

    def show(self, value: float | None) -> str:
        """The value with its unit; None is one that is not finite."""
        if value is None or not math.isfinite(value):
            return "not finite"
        return f"{value:.{self.digits}f}{self.unit}"


VAL_LOSS = Metric("val_loss", "validation loss", digits=3, higher_is_better=False)


@dataclass(frozen=True, kw_only=True)
class TaskContext:
    """The data and the model that a task is built for."""

    num_classes: int
    """0 if the data has no labels."""
    class_names: tuple[str, ...] = ()
    """Empty if they are not known."""
    data: str = "the data"
    image_size: tuple[int, int] = (224, 224)
    mean: tuple[float, ...] = (0.0, 0.0, 0.0)
    std: tuple[float, ...] = (1.0, 1.0, 1.0)
    model_name: str = "the model"


@dataclass(frozen=True, kw_only=True)
class NoArgs:
    """The settings of a task that has none."""


class Task(nn.Module):
    """What a run learns. A run trains all parameters that require a gradient.

    Modules that a task owns beside the model (a projector, a decoder, a teacher) are
    attributes: the train state saves and restores them, and they are trained unless
    they are frozen with `requires_grad_(False)`. Parameters belong to these modules,
    not to the task itself.
    """

    Args: ClassVar[type] = NoArgs
    """A frozen dataclass: the fields of a recipe's `task_args`."""
    needs_labels: ClassVar[bool] = True
    """Whether the data must have classes, and the model a head for them."""
    metrics: ClassVar[tuple[Metric, ...]] = (VAL_LOSS,)
    """What an evaluation gives; the first is the primary metric."""

    progress: Tensor
    """Share of the training that is done, from 0 to 1."""

    def __init__(self, model: nn.Module, context: TaskContext, args: Any) -> None:
        super().__init__()
        self.model, self.context, self.args = model, context, args
        self.register_buffer("progress", torch.zeros(()), persistent=False)

    def crops(self, crop: RandomCrop | CenterCrop) -> Crops:
        """The crops of each image that make its views, given the recipe's crop."""
        return (crop,)

    def views(
        self,
        pixels: tuple[Pixels, ...],
        labels: Labels,
        rng: CounterRng,
        augmentation: Augmentation,
    ) -> Views:
        """What the loss sees of a batch, given one tensor of pixels per crop.

        Runs on the device under `torch.compile(fullgraph=True)`; all randomness
        comes from `rng`: a resumed run draws the same.
        """
        raise NotImplementedError

    def forward(self, views: Views) -> Numbers:
        """Named numbers, means over the images; `loss` is what training minimises."""
        raise NotImplementedError

    def after_step(self, applied: Tensor) -> None:
        """Updates what depends on the weights, such as a moving-average teacher.

        `applied` is 1, or 0 if the gradient was not finite: then nothing may change.
        """

    def score(self, model: nn.Module, images: Images, labels: Labels) -> Views:
        """Numbers of every image, to evaluate a model (the raw one, or the EMA)."""
        raise NotImplementedError

    def summarize(self, values: Views) -> dict[str, float]:
        """The metrics of a whole validation set, given what `score` found."""
        for metric in self.metrics:
            if metric.name not in values:
                raise UserError(
                    f"{type(self).__name__}.score returns no {metric.name!r}, which is "
                    "a metric of the task."
                )
        return {
            metric.name: values[metric.name].double().mean().item()
            for metric in self.metrics
        }

    def own_modules(self) -> dict[str, nn.Module]:
        """The modules beside the model."""
        return {
            name: module for name, module in self.named_children() if name != "model"
        }


@torch.no_grad()
def move_towards(
    tensors: list[Tensor], targets: list[Tensor], share: float | Tensor
) -> None:
    """Moves tensors by a share of the difference to their targets, in place."""
    if isinstance(share, Tensor):  # which _foreach_lerp_ does not take
        differences = torch._foreach_sub(targets, tensors)
        torch._foreach_mul_(differences, share)
        torch._foreach_add_(tensors, differences)
    else:
        torch._foreach_lerp_(tensors, targets, share)


@torch.no_grad()
def update_moving_average(
    average: nn.Module, model: nn.Module, momentum: float | Tensor, applied: Tensor
) -> None:
    """Moves a teacher's weights towards the model's; buffers are copied."""
    share = (1 - momentum) * applied
    move_towards([*average.parameters()], [*model.parameters()], share)
    for own, other in zip(average.buffers(), model.buffers(), strict=True):
        own.copy_(torch.where(applied > 0, other, own))
