"""Distillation: classification that also learns from a trained, frozen teacher."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from t2t.errors import UserError, require
from t2t.models.vit import VisionTransformer
from t2t.models.weights import LoadReport, load_with_report
from t2t.shapes import Images, Logits
from t2t.tasks.base import ModuleFile, Numbers, TaskContext, Views
from t2t.tasks.class_matching import match_classes
from t2t.tasks.classify import Classify


@dataclass(frozen=True, kw_only=True)
class DistillArgs:
    """Settings of the distillation tasks."""

    teacher: str | None = None
    """Weights or run folder of the trained teacher."""
    weight: float = 1.0
    """Weight of the distillation loss."""
    temperature: float = 1.0
    """Temperature that softens the teacher's and the student's probabilities."""

    def __post_init__(self) -> None:
        """Checks the numbers."""
        require("task_args.weight", self.weight, 0)
        require("task_args.temperature", self.temperature, 0.01)


class Distill(Classify):
    """The base of the distillations: a frozen teacher that sees the same images."""

    Args = DistillArgs
    args: DistillArgs
    scale: Tensor | None
    shift: Tensor | None

    def __init__(self, model: nn.Module, context: TaskContext, args: Any) -> None:
        super().__init__(model, context, args)
        if args.teacher is None:
            raise UserError(
                "This task needs a teacher: set task_args.teacher=PATH to the weights "
                "or the run folder of a trained model."
            )
        teacher, loaded, file = load_teacher(args.teacher)
        self.teacher = teacher.eval().requires_grad_(False)
        if file is not None:
            self.files["teacher"] = file
        check_teacher(args.teacher, teacher, loaded.class_names, context)
        scale, shift = renormalization(context, loaded.extra)
        self.register_buffer("scale", scale, persistent=False)
        self.register_buffer("shift", shift, persistent=False)

    def train(self, mode: bool = True) -> "Distill":
        """Sets the student's mode; the teacher stays in eval mode."""
        super().train(mode)
        self.teacher.eval()
        return self

    @torch.no_grad()
    def teacher_logits(self, images: Images) -> Logits:
        """The teacher's logits."""
        if self.scale is not None and self.shift is not None:
            images = images * self.scale + self.shift
        return self.teacher(images)


class DistillSoft(Distill):
    """Cross-entropy plus the KL divergence from the teacher's soft predictions."""

    def forward(self, views: Views) -> Numbers:
        """The loss and its two parts."""
        logits = self.model(views["images"])
        teacher_loss = soft_divergence(
            logits, self.teacher_logits(views["images"]), self.args.temperature
        )
        return self.combine(F.cross_entropy(logits, views["targets"]), teacher_loss)

    def combine(self, label_loss: Tensor, teacher_loss: Tensor) -> Numbers:
        """The weighted sum, and its parts for the log."""
        return {
            "loss": label_loss + self.args.weight * teacher_loss,
            "label_loss": label_loss,
            "teacher_loss": teacher_loss,
        }


class DistillTokenSoft(DistillSoft):
    """The class token learns the labels, the distillation token the teacher."""

    def __init__(self, model: nn.Module, context: TaskContext, args: Any) -> None:
        check_token(model, context.model_name)
        super().__init__(model, context, args)

    def forward(self, views: Views) -> Numbers:
        """The loss and its two parts."""
        logits, distilled = self.model(views["images"], separate_heads=True)
        teacher_loss = soft_divergence(
            distilled, self.teacher_logits(views["images"]), self.args.temperature
        )
        return self.combine(F.cross_entropy(logits, views["targets"]), teacher_loss)


class DistillTokenHard(DistillTokenSoft):
    """The distillation token learns the class that the teacher predicts."""

    def forward(self, views: Views) -> Numbers:
        """The mean of two cross-entropies, and each of them."""
        logits, distilled = self.model(views["images"], separate_heads=True)
        predicted = self.teacher_logits(views["images"]).argmax(dim=1)
        label_loss = F.cross_entropy(logits, views["targets"])
        teacher_loss = F.cross_entropy(distilled, predicted)
        return {
            "loss": (label_loss + teacher_loss) / 2,
            "label_loss": label_loss,
            "teacher_loss": teacher_loss,
        }


def soft_divergence(student: Logits, teacher: Logits, temperature: float) -> Tensor:
    """KL(teacher ‖ student) at a temperature, scaled to keep the gradient's size."""
    return F.kl_div(
        F.log_softmax(student / temperature, dim=1),
        F.log_softmax(teacher / temperature, dim=1),
        reduction="batchmean",
        log_target=True,
    ) * (temperature**2)


def load_teacher(path: str) -> tuple[nn.Module, LoadReport, ModuleFile | None]:
    """The teacher, its report, and its file if that holds every tensor."""
    try:
        file = ModuleFile.of(path)
        teacher, loaded = load_with_report(path)
    except UserError as error:
        raise UserError(f"The teacher {path} cannot be loaded: {error}") from error
    taken, all_of_them = loaded.num_tensors
    return teacher, loaded, file if taken == all_of_them else None


def check_token(model: nn.Module, name: str) -> None:
    """Raises an error if the student has no distillation token."""
    ours = isinstance(model, VisionTransformer)
    if isinstance(model, VisionTransformer) and model.config.distilled:
        return
    advice = "set task=distill_soft"
    if ours:
        advice += (
            ", or model_args.distilled=true, model_args.class_token=true and "
            "model_args.pool=class"
        )
    raise UserError(
        f"This task needs a distillation token, which {name}"
        f"{'' if ours else ' (built by timm)'} does not have; {advice}."
    )


def check_teacher(
    path: str, teacher: nn.Module, names: Sequence[str] | None, context: TaskContext
) -> None:
    """Raises an error if the teacher's classes are not those of the data."""
    known = getattr(teacher, "num_classes", context.num_classes)
    if known != context.num_classes:
        raise UserError(
            f"The teacher {path} has {known} classes and the data has "
            f"{context.num_classes}; give a teacher that was trained on this data."
        )
    if not (context.class_names and names):
        return
    try:
        numbers, _ = match_classes(context.class_names, names, context.data)
    except UserError as error:
        raise UserError(f"The teacher {path} does not fit: {error}") from None
    if numbers.tolist() != list(range(len(names))):
        raise UserError(
            f"The teacher {path} has the classes of {context.data} in another order; "
            "give a teacher that was trained on this data."
        )


def renormalization(
    context: TaskContext, teacher: Mapping[str, Any]
) -> tuple[Tensor | None, Tensor | None]:
    """Scale and shift from our normalized images to the teacher's, if they differ."""

    def values(numbers: Sequence[float]) -> Tensor:
        return torch.tensor(numbers).reshape(1, -1, 1, 1)

    mean = tuple(teacher.get("mean", context.mean))
    std = tuple(teacher.get("std", context.std))
    if (mean, std) == (context.mean, context.std):
        return None, None
    scale = values(context.std) / values(std)
    return scale, (values(context.mean) - values(mean)) / values(std)
