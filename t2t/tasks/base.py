"""A task: what a run learns, with its own modules, its loss and its metrics."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from t2t.data.augment.config import Augmentation
from t2t.data.crops import CenterCrop, RandomCrop
from t2t.data.rng import CounterRng
from t2t.data.sources.label_sets import LabelSets
from t2t.errors import UserError
from t2t.models.shards import local_tensors
from t2t.shapes import Images, Labels, Pixels

Views = dict[str, Tensor]
"""Tensors by name, each with one row per image."""
Numbers = dict[str, Tensor]
"""Scalars by name."""
Crops = tuple[RandomCrop | CenterCrop, ...]


@dataclass(frozen=True)
class Metric:
    """A number that an evaluation computes, and how to format it."""

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

    @property
    def heading(self) -> str:
        """The label with the unit, for tables and axes."""
        return f"{self.label}, {self.unit.strip()}" if self.unit else self.label


VAL_LOSS = Metric("val_loss", "validation loss", digits=3, higher_is_better=False)


@dataclass(frozen=True, kw_only=True)
class TaskContext:
    """The data and the model that a task is built for."""

    num_classes: int
    """Outputs of the model's head; 0 for a task without labels."""
    has_labels: bool = True
    """Whether the data has labels, to score with."""
    class_names: tuple[str, ...] = ()
    """Empty if they are not known."""
    class_weights: tuple[float, ...] = ()
    """Weights of the classes in the loss; empty if all are 1."""
    label_sets: LabelSets | None = None
    """The sets that labels number, if an image may have several classes."""
    data: str = "the data"
    image_size: tuple[int, int] = (224, 224)
    mean: tuple[float, ...] = (0.0, 0.0, 0.0)
    std: tuple[float, ...] = (1.0, 1.0, 1.0)
    model_name: str = "the model"
    freeze: bool = False
    """Whether only the model's head is trained."""
    keep_tokens: float = 1.0
    """Share of the tokens that the blocks see at the start of training."""
    resizes: bool = False
    """Whether images are smaller at the start of training."""


@dataclass(frozen=True)
class ModuleFile:
    """The weights that a module was loaded from: a file, or a timm model's."""

    path: str
    """As the user names them."""
    checksum: str
    """Checksum of their tensors, as in a recipe's `weights_checksum`."""


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
    takes_label_sets: ClassVar[bool] = False
    """Whether an image may have several classes: labels then number sets of these."""
    metrics: ClassVar[tuple[Metric, ...]] = (VAL_LOSS,)
    """What an evaluation computes; the first is the primary metric."""
    balanced_by: ClassVar[tuple[str, ...]] = ()
    """What a recipe's `balance` may be: `sampling` if an image has one class, `weights`
    if the loss also takes the context's `class_weights`."""
    needs_whole_batch: ClassVar[bool] = False
    """Whether the loss compares all images of a batch: it takes no micro-batches."""

    files: dict[str, ModuleFile]
    """The files of frozen modules that `__init__` loads unchanged: checkpoints hold
    their checksums instead of their tensors."""
    notes: tuple[str, ...]
    """Sentences for the log at the start of a run, on what `__init__` assumes."""
    progress: Tensor
    """Fraction of the training that is done, from 0 to 1."""

    def __init__(self, model: nn.Module, context: TaskContext, args: Any) -> None:
        super().__init__()
        self.model, self.context, self.args = model, context, args
        self.files = {}
        self.notes = ()
        self.register_buffer("progress", torch.zeros(()), persistent=False)

    def train(self, mode: bool = True) -> Self:
        """Sets the mode; a frozen body stays in eval mode, batch norms included."""
        super().train(mode)
        if mode and self.context.freeze:
            self.model.eval()
            for head in heads_of(self.model):
                head.train()
        return self

    @classmethod
    def metrics_for(cls, has_labels: bool) -> tuple[Metric, ...]:
        """Those of the metrics that such data has; the first is the primary metric."""
        return cls.metrics

    @classmethod
    def warning(cls, numbers: Mapping[str, float], progress: float) -> str:
        """A sentence on what the means of the last steps' numbers show; or nothing.

        `progress` is the share of the training that is done. It is logged once.
        """
        return ""

    def crops(self, crop: RandomCrop | CenterCrop) -> Crops:
        """The crops to take of each image, given the recipe's crop."""
        return (crop,)

    def views(
        self,
        pixels: tuple[Pixels, ...],
        labels: Labels,
        rng: CounterRng,
        augmentation: Augmentation,
    ) -> Views:
        """The inputs of the loss, given one tensor of pixels per crop.

        Runs on the device, beside the step before and, if the run is compiled, under
        `torch.compile(fullgraph=True)`. So it reads no weights and no `progress`. All
        random numbers come from `rng`, so that a resumed run draws the same.
        """
        raise NotImplementedError

    def forward(self, views: Views) -> Numbers:
        """Numbers by name, each a mean over the images; `loss` is minimised."""
        raise NotImplementedError

    def after_step(self, applied: Tensor) -> None:
        """Updates what depends on the weights, such as a moving-average teacher.

        `applied` is 1, or 0 if the gradient was not finite: then nothing may change.
        """

    def score(self, model: nn.Module, images: Images, labels: Labels) -> Views:
        """Numbers per image, by name, for an evaluation of the raw model or the EMA."""
        raise NotImplementedError

    def summarize(self, values: Views) -> dict[str, float]:
        """The metrics of the validation set, given the numbers of all its images."""
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

    def pictures(self, model: nn.Module, images: Images) -> dict[str, Pixels]:
        """Pictures by title of what the task does with images; empty for most tasks.

        They are drawn into the run folder at the end of training.
        """
        return {}

    def own_modules(self) -> dict[str, nn.Module]:
        """The modules beside the model."""
        return {
            name: module for name, module in self.named_children() if name != "model"
        }

    def saved_modules(self) -> dict[str, nn.Module]:
        """The modules beside the model that a checkpoint holds."""
        own = self.own_modules().items()
        return {name: module for name, module in own if name not in self.files}


def heads_of(model: nn.Module) -> tuple[nn.Module, ...]:
    """The classifiers of a model, by timm's interface."""
    heads: Any = getattr(model, "get_classifier", tuple)()
    return heads if isinstance(heads, tuple) else (heads,)


@torch.no_grad()
def move_towards(
    tensors: list[Tensor], targets: list[Tensor], share: float | Tensor
) -> None:
    """Moves tensors by a share of the difference to their targets, in place.

    If they are sharded, both are sharded alike.
    """
    tensors, targets = local_tensors(tensors), local_tensors(targets)
    if isinstance(share, Tensor):  # _foreach_lerp_ takes only floats
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
