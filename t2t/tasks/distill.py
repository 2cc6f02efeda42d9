"""Distillation: classification that also learns from a trained, frozen teacher."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from t2t.errors import UserError, require
from t2t.models.class_names import class_indices
from t2t.models.config import Size
from t2t.models.trained import TrainedModel, load_trained
from t2t.models.vit import VisionTransformer
from t2t.shapes import Images, Logits
from t2t.tasks.base import ModuleFile, Numbers, TaskContext, Views
from t2t.tasks.class_matching import match_classes
from t2t.tasks.classify import Classify


@dataclass(frozen=True, kw_only=True)
class DistillArgs:
    """Settings of all distillation tasks."""

    teacher: str | None = None
    """Run folder or weights of the trained teacher, or a timm model's name."""
    teacher_model: str | None = None
    """The teacher's architecture, if its file does not name it."""
    weight: float = 1.0
    """Weight of the teacher's part of the loss."""

    def __post_init__(self) -> None:
        """Checks the numbers."""
        require("task_args.weight", self.weight, 0)


@dataclass(frozen=True, kw_only=True)
class SoftArgs(DistillArgs):
    """Settings of the distillations from probabilities."""

    temperature: float = 1.0
    """Temperature that softens the teacher's and the student's probabilities."""

    def __post_init__(self) -> None:
        """Checks the numbers."""
        super().__post_init__()
        require("task_args.temperature", self.temperature, 0.01)


class Distill(Classify):
    """The base of the distillations: a frozen teacher that sees the same images.

    It sees the student's very view, in its own image size and normalisation.
    """

    Args: ClassVar[type] = DistillArgs
    args: Any
    scale: Tensor | None
    shift: Tensor | None
    outputs: Tensor | None
    """The teacher's output for each class of the data; None if they are the same."""

    def __init__(self, model: nn.Module, context: TaskContext, args: Any) -> None:
        super().__init__(model, context, args)
        if args.teacher is None:
            raise UserError(
                "This task needs a teacher: add --teacher with a run folder, weights "
                "or the name of a timm model, or set task_args.teacher."
            )
        teacher = load_teacher(args.teacher, args.teacher_model)
        self.teacher = teacher.model.eval().requires_grad_(False)
        if teacher.is_complete:
            self.files["teacher"] = ModuleFile(teacher.path, teacher.checksum)
        self.teacher_size = teacher.image_size
        scale, shift = renormalization(context, teacher)
        outputs, note = outputs_of(teacher, context)
        self.notes = tuple(each for each in (*teacher.notes, note) if each)
        self.register_buffer("outputs", outputs, persistent=False)
        self.register_buffer("scale", scale, persistent=False)
        self.register_buffer("shift", shift, persistent=False)

    def train(self, mode: bool = True) -> Self:
        """Sets the student's mode; the teacher stays in eval mode."""
        super().train(mode)
        self.teacher.eval()
        return self

    @torch.no_grad()
    def teacher_logits(self, images: Images) -> Logits:
        """The teacher's logits for the classes of the data."""
        if self.scale is not None and self.shift is not None:
            images = images * self.scale + self.shift
        logits: Tensor = self.teacher(resized(images, self.teacher_size))
        return logits if self.outputs is None else logits[:, self.outputs]

    def combine(self, label_loss: Tensor, teacher_loss: Tensor) -> Numbers:
        """The weighted sum, and its parts for the log."""
        return {
            "loss": label_loss + self.args.weight * teacher_loss,
            "label_loss": label_loss,
            "teacher_loss": teacher_loss,
        }


class DistillSoft(Distill):
    """Cross-entropy plus the KL divergence from the teacher's soft predictions."""

    Args = SoftArgs

    def forward(self, views: Views) -> Numbers:
        """The loss and its two parts."""
        logits = self.model(views["images"])
        teacher_loss = soft_divergence(
            logits, self.teacher_logits(views["images"]), self.args.temperature
        )
        return self.combine(F.cross_entropy(logits, views["targets"]), teacher_loss)


class DistillHard(Distill):
    """Cross-entropy with the labels, and with the class that the teacher predicts."""

    def forward(self, views: Views) -> Numbers:
        """The weighted mean of two cross-entropies, and both."""
        logits = self.model(views["images"])
        predicted = self.teacher_logits(views["images"]).argmax(dim=1)
        return self.combine(
            F.cross_entropy(logits, views["targets"]),
            F.cross_entropy(logits, predicted),
        )

    def combine(self, label_loss: Tensor, teacher_loss: Tensor) -> Numbers:
        """The weighted mean, and its parts for the log."""
        numbers = super().combine(label_loss, teacher_loss)
        return {**numbers, "loss": numbers["loss"] / (1 + self.args.weight)}


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


class DistillTokenHard(DistillHard):
    """The distillation token learns the class that the teacher predicts."""

    def __init__(self, model: nn.Module, context: TaskContext, args: Any) -> None:
        check_token(model, context.model_name)
        super().__init__(model, context, args)

    def forward(self, views: Views) -> Numbers:
        """The weighted mean of two cross-entropies, and both."""
        logits, distilled = self.model(views["images"], separate_heads=True)
        predicted = self.teacher_logits(views["images"]).argmax(dim=1)
        return self.combine(
            F.cross_entropy(logits, views["targets"]),
            F.cross_entropy(distilled, predicted),
        )


def soft_divergence(student: Logits, teacher: Logits, temperature: float) -> Tensor:
    """KL(teacher ‖ student) at a temperature, scaled to keep the gradient's size."""
    return F.kl_div(
        F.log_softmax(student / temperature, dim=1),
        F.log_softmax(teacher / temperature, dim=1),
        reduction="batchmean",
        log_target=True,
    ) * (temperature**2)


def load_teacher(path: str, model: str | None) -> TrainedModel:
    """The teacher, with the checksum of its weights."""
    try:
        return load_trained(path, model=model, checksum=True)
    except UserError as error:
        raise UserError(f"The teacher {path} cannot be loaded: {error}") from error


def check_token(model: nn.Module, name: str) -> None:
    """Raises an error if the student has no distillation token."""
    ours = isinstance(model, VisionTransformer)
    if isinstance(model, VisionTransformer) and model.config.distilled:
        return
    advice = "set task=distill_soft or task=distill_hard"
    if ours:
        advice += (
            ", or add the token: --distill-token, or model_args.distilled=true, "
            "model_args.class_token=true and model_args.pool=class"
        )
    raise UserError(
        f"This task needs a distillation token, which {name}"
        f"{'' if ours else ' (built by timm)'} does not have; {advice}."
    )


def outputs_of(
    teacher: TrainedModel, context: TaskContext
) -> tuple[Tensor | None, str]:
    """The teacher's output for each class of the data, and a note on what is assumed.

    None if they are the same.
    """
    path, names = teacher.path, teacher.class_names
    has_all = bool(context.class_names) and None not in class_indices(
        context.class_names, names
    )
    if not has_all and len(names) != context.num_classes:
        raise UserError(
            f"The teacher {path} has {len(names)} classes and the data has "
            f"{context.num_classes} others: fine-tune the teacher on this data first "
            "(t2t train --from), or give another."
        )
    if not context.class_names:  # they are matched by number
        return None, ""
    try:
        numbers, notes = match_classes(context.class_names, names, context.data)
    except UserError as error:
        raise UserError(
            f"The teacher {path} does not fit: {str(error).partition(' Rename')[0]} "
            "Fine-tune it on this data first (t2t train --from), or give another."
        ) from None
    note = " ".join(notes).replace("The model's", "The teacher's")
    if numbers.tolist() == list(range(len(names))):
        return None, note
    return torch.from_numpy(numbers), note.replace("the model's", "the teacher's")


def renormalization(
    context: TaskContext, teacher: TrainedModel
) -> tuple[Tensor | None, Tensor | None]:
    """Scale and shift from our normalized images to the teacher's, if they differ.

    Gray images become the teacher's colour images by broadcasting.
    """

    def values(numbers: Sequence[float]) -> Tensor:
        return torch.tensor(numbers).reshape(1, -1, 1, 1)

    channels = len(context.mean)
    if channels not in (1, teacher.channels):
        raise UserError(
            f"The teacher {teacher.path} is for images of {teacher.channels} channels, "
            f"and this run trains on {channels}; set channels={teacher.channels}, or "
            "give another teacher."
        )
    if (teacher.mean, teacher.std) == (context.mean, context.std):
        return None, None
    scale = values(context.std) / values(teacher.std)
    shift = (values(context.mean) - values(teacher.mean)) / values(teacher.std)
    return scale, shift


def resized(images: Images, size: Size) -> Images:
    """The images in another size, smoothed when they shrink."""
    if tuple(images.shape[-2:]) == size:
        return images
    return F.interpolate(
        images.float(), size, mode="bilinear", align_corners=False, antialias=True
    )
