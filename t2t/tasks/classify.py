"""Classification: one augmented view of each image, and its label."""

import torch.nn.functional as F
from torch import nn

from t2t.data.augment.config import Augmentation
from t2t.data.augment.pipeline import augment
from t2t.data.rng import CounterRng
from t2t.shapes import Images, Labels, Pixels
from t2t.tasks.base import VAL_LOSS, Metric, Numbers, Task, Views

TOP1 = Metric("top1", "top-1", " %")
TOP5 = Metric("top5", "top-5", " %")


class Classify(Task):
    """Cross-entropy against soft targets (label smoothing, mixup, cutmix)."""

    metrics = (TOP1, TOP5, VAL_LOSS)

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
        return {"images": images, "targets": targets}

    def forward(self, views: Views) -> Numbers:
        """The cross-entropy."""
        return {"loss": F.cross_entropy(self.model(views["images"]), views["targets"])}

    def score(self, model: nn.Module, images: Images, labels: Labels) -> Views:
        """Hits, loss, predicted class and probabilities of each image."""
        return score_classifier(model, images, labels)


def score_classifier(model: nn.Module, images: Images, labels: Labels) -> Views:
    """Per image: hits as 100 or 0, the loss, the predicted class and probabilities."""
    logits = model(images).float()
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
