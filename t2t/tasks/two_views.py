"""The base of tasks that compare augmented views of each image."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from t2t.data.augment.config import Augmentation
from t2t.data.augment.pipeline import augment_images
from t2t.data.crops import CenterCrop, RandomCrop
from t2t.data.rng import CounterRng
from t2t.errors import require
from t2t.shapes import Images, Labels, Pixels
from t2t.tasks.base import VAL_LOSS, Crops, Metric, Numbers, Task, TaskContext, Views
from t2t.tasks.heads import Features, MomentumTeacher, feature_width, momentum_at
from t2t.tasks.knn import leave_one_out_knn

KNN_TOP1 = Metric("knn_top1", "kNN top-1", " %")
COLLAPSED = 0.01
"""Features or outputs with a smaller deviation are equal for all images."""
WARMUP = 0.1
"""Share of the training before which small deviations are normal."""
CROP_SHARE = 0.75
"""Share of an image's sides in the fixed crops of an evaluation."""


@dataclass(frozen=True, kw_only=True)
class TwoViewArgs:
    """Settings of all tasks that compare two views."""

    second_scale: tuple[float, float] | None = None
    """Crop scale of the second view; None is the recipe's."""
    hidden_dim: int = 2048
    """Width of the hidden layers of the heads."""
    output_dim: int = 256
    """Width of the outputs that are compared."""

    def __post_init__(self) -> None:
        """Checks the numbers."""
        for name in ("hidden_dim", "output_dim"):
            require(f"task_args.{name}", getattr(self, name), 1)
        if self.second_scale is not None:
            check_scale("second_scale", self.second_scale)


@dataclass(frozen=True, kw_only=True)
class TeacherArgs(TwoViewArgs):
    """Settings of tasks with a momentum teacher."""

    momentum: float = 0.99
    """The teacher's momentum at the start; it rises to 1 along a cosine."""

    def __post_init__(self) -> None:
        """Checks the numbers."""
        super().__post_init__()
        require("task_args.momentum", self.momentum, 0, 1)


class TwoViews(Task):
    """Trains an encoder to give both views of an image the same features."""

    Args = TwoViewArgs
    needs_labels = False
    metrics = (KNN_TOP1, VAL_LOSS)
    projector: nn.Module

    def __init__(self, model: nn.Module, context: TaskContext, args: Any) -> None:
        super().__init__(model, context, args)
        self.width = feature_width(model, context.model_name)

    @classmethod
    def metrics_for(cls, has_labels: bool) -> tuple[Metric, ...]:
        """The nearest neighbours' top-1 needs labels."""
        return cls.metrics if has_labels else (VAL_LOSS,)

    @classmethod
    def warning(cls, numbers: Mapping[str, float], progress: float) -> str:
        """A sentence if the features or the outputs of the head have collapsed."""
        if progress < WARMUP:
            return ""
        for name, what in (("feature_std", "features"), ("output_std", "outputs")):
            if numbers.get(name, 1.0) < COLLAPSED:
                return (
                    f"The {what} have collapsed: they are nearly equal for all images "
                    f"({name} {numbers[name]:.4f}, where 1 is best); start over with a "
                    "lower optimizer.lr, a longer schedule.warmup_epochs or a larger "
                    "batch_size."
                )
        return ""

    def crops(self, crop: RandomCrop | CenterCrop) -> Crops:
        """Two crops of each image."""
        second = crop
        if self.args.second_scale is not None:
            second = rescaled(crop, self.args.second_scale)
        return (crop, second)

    def views(
        self,
        pixels: tuple[Pixels, ...],
        labels: Labels,
        rng: CounterRng,
        augmentation: Augmentation,
    ) -> Views:
        """The crops, each augmented by draws of its own."""
        return {
            f"view{number}": augment_images(
                some, rng.for_view(number), augmentation, view=number
            )
            for number, some in enumerate(pixels)
        }

    def forward(self, views: Views) -> Numbers:
        """The loss, and how much features and outputs differ between images."""
        pair = (views["view0"], views["view1"])
        features = encode(self.model, pair)
        outputs = [self.project(each) for each in features]
        return {
            "loss": self.compare(outputs, pair).mean(),
            "feature_std": feature_std(features[0]),
            "output_std": feature_std(outputs[0]),
        }

    def project(self, features: Features) -> Features:
        """The outputs of the heads for a view, which are compared."""
        outputs: Features = self.projector(features)
        return outputs

    def compare(
        self, outputs: Sequence[Features], images: Sequence[Images]
    ) -> Float[Tensor, " batch"]:
        """The loss of every image, given its two views and their outputs."""
        raise NotImplementedError

    def score(self, model: nn.Module, images: Images, labels: Labels) -> Views:
        """The features of every image, and its loss for two fixed crops."""
        pair = fixed_views(images)
        outputs = [self.project(each) for each in encode(model, pair)]
        values = {"val_loss": self.compare(outputs, pair)}
        if self.context.has_labels:
            values["features"] = F.normalize(model(images).float(), dim=1)
        return values

    def summarize(self, values: Views) -> dict[str, float]:
        """The validation loss, and the top-1 of the nearest neighbours."""
        found = {"val_loss": values["val_loss"].double().mean().item()}
        if self.context.has_labels:
            device = self.progress.device
            hits = leave_one_out_knn(
                values["features"].to(device), values["label"].to(device)
            )
            found["knn_top1"] = 100 * hits.double().mean().item()
        return found


class TaughtTwoViews(TwoViews):
    """Compares each view with a momentum teacher's output for the other."""

    Args = TeacherArgs
    teacher: MomentumTeacher

    @torch.no_grad()
    def after_step(self, applied: Tensor) -> None:
        """Moves the teacher towards the encoder and its projector."""
        momentum = momentum_at(self.progress, self.args.momentum)
        self.teacher.follow(self.model, self.projector, momentum, applied)


def encode(encoder: nn.Module, views: Sequence[Images]) -> tuple[Features, ...]:
    """The features of views of one size, computed as one batch."""
    features: Features = encoder(torch.cat([*views]))
    return features.chunk(len(views))


def similarities(first: Features, second: Features, temperature: float) -> Tensor:
    """Cosines of all pairs over the temperature, in full precision."""
    with torch.autocast(first.device.type, enabled=False):
        first = F.normalize(first.float(), dim=1)
        second = F.normalize(second.float(), dim=1)
        return first @ second.T / temperature


@torch.no_grad()
def feature_std(features: Features) -> Tensor:
    """The standard deviation of normalized features, from 0 (collapsed) to 1."""
    normalized = F.normalize(features.float(), dim=1)
    deviation = normalized.std(0, unbiased=False).mean()
    return deviation * features.shape[1] ** 0.5


def fixed_views(images: Images) -> tuple[Images, Images]:
    """The upper left of each image, and the lower right."""
    height, width = images.shape[2:]
    rows, columns = round(CROP_SHARE * height), round(CROP_SHARE * width)
    parts = (images[:, :, :rows, :columns], images[:, :, -rows:, -columns:])
    first, second = (
        F.interpolate(part, (height, width), mode="bilinear", antialias=True)
        for part in parts
    )
    return first, second


def rescaled(
    crop: RandomCrop | CenterCrop,
    scale: tuple[float, float],
    size: tuple[int, int] | None = None,
) -> RandomCrop:
    """A random crop of another scale, and of another size if it is given."""
    size = size or crop.size
    if isinstance(crop, RandomCrop):
        return replace(crop, scale=scale, size=size)
    return RandomCrop(size=size, scale=scale)


def check_scale(name: str, scale: tuple[float, float]) -> None:
    """Refuses shares of an image's area that no crop can have."""
    low, high = scale
    require(f"task_args.{name}[1]", high, 0.001, 1.0)
    require(f"task_args.{name}[0]", low, 0.001, high)
