"""DINO: a student predicts a momentum teacher's distribution over prototypes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from t2t.data.crops import CenterCrop, RandomCrop
from t2t.errors import require
from t2t.shapes import Images
from t2t.tasks.base import Crops, Numbers, TaskContext, Views
from t2t.tasks.heads import Features, MomentumTeacher, PrototypeHead
from t2t.tasks.processes import Centre
from t2t.tasks.two_views import (
    WARMUP,
    TaughtTwoViews,
    TeacherArgs,
    check_scale,
    encode,
    feature_std,
    rescaled,
)

Outputs = Float[Tensor, "batch prototypes"]
UNIFORM, CONSTANT = 0.999, 0.01
"""Entropies, as shares of the largest one, beyond which a teacher has collapsed."""


@dataclass(frozen=True, kw_only=True)
class DINOArgs(TeacherArgs):
    """Settings of DINO."""

    momentum: float = 0.996
    """The teacher's momentum at the start; it rises to 1 along a cosine."""
    num_prototypes: int = 4096
    student_temperature: float = 0.1
    teacher_temperature: float = 0.07
    """Lower than the student's: the targets are sharper."""
    first_teacher_temperature: float = 0.04
    """The teacher's temperature at the start; it rises linearly."""
    warmup_share: float = 0.1
    """Share of the training in which the teacher's temperature rises."""
    freeze_share: float = 0.01
    """Share of the training, at the start, in which prototypes stay as they are."""
    centre_momentum: float = 0.9
    local_crops: int = 0
    """Small crops of each image that only the student sees."""
    local_scale: tuple[float, float] = (0.05, 0.4)
    """Crop scale of the small crops."""
    local_size: tuple[int, int] | None = None
    """Height and width of the small crops; None is half of the image size."""

    def __post_init__(self) -> None:
        """Checks the numbers."""
        super().__post_init__()
        require("task_args.num_prototypes", self.num_prototypes, 2)
        require("task_args.local_crops", self.local_crops, 0)
        for name in (
            "student_temperature",
            "teacher_temperature",
            "first_teacher_temperature",
        ):
            require(f"task_args.{name}", getattr(self, name), 0.001)
        for name in ("warmup_share", "freeze_share", "centre_momentum"):
            require(f"task_args.{name}", getattr(self, name), 0, 1)
        check_scale("local_scale", self.local_scale)
        for side in self.local_size or ():
            require("task_args.local_size", side, 1)


class DINO(TaughtTwoViews):
    """Cross-entropy with the centred, sharpened outputs of a momentum teacher."""

    Args = DINOArgs

    def __init__(self, model: nn.Module, context: TaskContext, args: Any) -> None:
        super().__init__(model, context, args)
        self.projector = PrototypeHead(
            self.width, args.hidden_dim, args.output_dim, args.num_prototypes
        )
        self.teacher = MomentumTeacher(model, self.projector)
        self.centre = Centre(args.num_prototypes, 1 - args.centre_momentum)

    @classmethod
    def warning(cls, numbers: Mapping[str, float], progress: float) -> str:
        """A sentence if the features or the teacher's outputs have collapsed."""
        sentence = super().warning(numbers, progress)
        if sentence or progress < WARMUP:
            return sentence
        if numbers.get("teacher_entropy", 0.0) > UNIFORM:
            return (
                "The teacher's outputs have collapsed: they are uniform for every "
                "image; set task_args.teacher_temperature lower."
            )
        if numbers.get("batch_entropy", 1.0) < CONSTANT:
            return (
                "The teacher's outputs have collapsed: every image has the same "
                "prototype; set task_args.centre_momentum lower or "
                "task_args.teacher_temperature higher."
            )
        return ""

    def crops(self, crop: RandomCrop | CenterCrop) -> Crops:
        """Two crops of each image, and small ones."""
        args = self.args
        height, width = crop.size
        size = args.local_size or (max(1, height // 2), max(1, width // 2))
        local = rescaled(crop, args.local_scale, size)
        return (*super().crops(crop), *[local] * args.local_crops)

    def forward(self, views: Views) -> Numbers:
        """The loss, and numbers that show a collapse."""
        images = [views[f"view{number}"] for number in range(len(views))]
        features = encode(self.model, images[:2])
        taught = self.targets(images[:2])
        local = encode(self.model, images[2:]) if len(images) > 2 else ()
        all_features = (*features, *local)
        outputs = self.project(torch.cat(all_features)).chunk(len(all_features))
        return {
            "loss": self.cross_entropies(outputs, taught).mean(),
            "feature_std": feature_std(features[0]),
            **entropies(taught),
        }

    def project(self, features: Features) -> Outputs:
        """The cosines with the prototypes, which are not trained at the start."""
        outputs: Outputs = self.projector(
            features, self.progress >= self.args.freeze_share
        )
        return outputs

    def compare(
        self, outputs: Sequence[Features], images: Sequence[Images]
    ) -> Float[Tensor, " batch"]:
        """The loss of every image."""
        return self.cross_entropies(outputs, self.targets(images))

    def targets(self, images: Sequence[Images]) -> list[Outputs]:
        """The teacher's probabilities for each view."""
        centred = self.centre(torch.cat(self.teacher(images)))
        sharp = centred / self.teacher_temperature()
        return [*sharp.softmax(1).chunk(len(images))]

    def teacher_temperature(self) -> Tensor:
        """The teacher's temperature now."""
        args = self.args
        rise = args.teacher_temperature - args.first_teacher_temperature
        share = self.progress / max(args.warmup_share, 1e-6)
        temperature: Tensor = args.first_teacher_temperature + rise * share.clamp(max=1)
        return temperature

    def cross_entropies(
        self, outputs: Sequence[Outputs], taught: Sequence[Outputs]
    ) -> Float[Tensor, " batch"]:
        """The mean cross-entropy over pairs of a target and another view."""
        temperature = self.args.student_temperature
        students = [(each.float() / temperature).log_softmax(1) for each in outputs]
        losses = [
            -(target * student).sum(1)
            for number, target in enumerate(taught)
            for other, student in enumerate(students)
            if other != number
        ]
        return torch.stack(losses).mean(0)


@torch.no_grad()
def entropies(taught: Sequence[Outputs]) -> Numbers:
    """Entropies of an image's target and of the batch's mean target, from 0 to 1."""
    targets = torch.cat([*taught])
    largest = math.log(targets.shape[1])

    def entropy(probabilities: Tensor) -> Tensor:
        return torch.special.entr(probabilities).sum(-1).mean() / largest

    return {
        "teacher_entropy": entropy(targets),
        "batch_entropy": entropy(targets.mean(0)),
    }
