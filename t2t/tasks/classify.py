"""Classification: one augmented view of each image, and its label."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from t2t.data.augment.config import Augmentation
from t2t.data.augment.pipeline import augment
from t2t.data.rng import CounterRng
from t2t.shapes import Images, Labels, Logits, Pixels
from t2t.tasks.base import VAL_LOSS, Metric, Numbers, Task, TaskContext, Views

TOP1 = Metric("top1", "top-1", " %")
TOP5 = Metric("top5", "top-5", " %")
MACRO = Metric("macro_accuracy", "macro accuracy", " %")
"""Balanced accuracy: the mean of the classes' recalls."""


class Classify(Task):
    """Cross-entropy against soft targets (label smoothing, mixup, cutmix).

    With class weights, each class's part of a soft target is weighted.
    """

    metrics = (TOP1, TOP5, MACRO, VAL_LOSS)
    balanced_by = ("sampling", "weights")
    class_weights: Tensor | None

    def __init__(self, model: nn.Module, context: TaskContext, args: Any) -> None:
        super().__init__(model, context, args)
        weights = torch.tensor(context.class_weights) if context.class_weights else None
        self.register_buffer("class_weights", weights, persistent=False)

    def views(
        self,
        pixels: tuple[Pixels, ...],
        labels: Labels,
        rng: CounterRng,
        augmentation: Augmentation,
    ) -> Views:
        """One augmented image and its soft target."""
        num_classes = self.context.num_classes
        images, targets = augment(pixels[0], labels, rng, augmentation, num_classes)
        if self.class_weights is not None:
            targets = targets * self.class_weights
        return {"images": images, "targets": targets}

    def forward(self, views: Views) -> Numbers:
        """The cross-entropy."""
        return {"loss": F.cross_entropy(self.model(views["images"]), views["targets"])}

    def score(self, model: nn.Module, images: Images, labels: Labels) -> Views:
        """Hits, loss, predicted class and probabilities of each image."""
        return score_classifier(model, images, labels)

    def summarize(self, values: Views) -> dict[str, float]:
        """The means over the images; macro accuracy from the predicted classes."""
        if "predicted" in values:
            macro = macro_accuracy(values["label"], values["predicted"])
            values = {MACRO.name: torch.tensor([macro]), **values}
        return super().summarize(values)


def macro_accuracy(labels: Tensor, predicted: Tensor) -> float:
    """The mean over the classes that occur of the per cent of their images hit."""
    num_images = labels.bincount().double()
    hits = labels[labels == predicted].bincount(minlength=len(num_images))
    occurs = num_images > 0
    return 100 * (hits[occurs] / num_images[occurs]).mean().item()


def score_classifier(model: nn.Module, images: Images, labels: Labels) -> Views:
    """Per image: hits as 100 or 0, the loss, the predicted class and probabilities."""
    return score_logits(model(images).float(), labels)


def flipped_logits(model: nn.Module, images: Images) -> Logits:
    """The logarithms of probabilities averaged over images and their mirror images."""
    both = [model(each).float().log_softmax(1) for each in (images, images.flip(3))]
    return torch.logaddexp(*both) - math.log(2)


def score_logits(logits: Logits, labels: Labels) -> Views:
    """What `score_classifier` returns, given a model's logits."""
    order = logits.topk(min(5, logits.shape[1]), dim=1).indices
    hits = order == labels[:, None]
    losses = F.cross_entropy(logits, labels, reduction="none")
    return {
        "top1": 100.0 * hits[:, 0],
        "top5": 100.0 * hits.any(1),
        "val_loss": losses,
        "predicted": order[:, 0],
        "confidence": logits.softmax(1).amax(1),
        "label_probability": (-losses).exp(),
    }
