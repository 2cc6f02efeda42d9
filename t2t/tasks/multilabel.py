"""Multi-label classification: any number of classes for each image."""

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from t2t.data.augment.config import Augmentation
from t2t.data.augment.mix import smoothed
from t2t.data.augment.pipeline import augment_with_targets
from t2t.data.rng import CounterRng
from t2t.data.sources.label_sets import LabelSets, sets_of_classes
from t2t.shapes import Images, Labels, Pixels
from t2t.tasks.base import VAL_LOSS, Metric, NoArgs, Numbers, Task, TaskContext, Views
from t2t.tasks.multilabel_scores import MultilabelScores

MAP = Metric("map", "mAP", " %")
F1 = Metric("f1", "F1 at 0.5", " %")


class Multilabel(Task):
    """Binary cross-entropy of every class against multi-hot targets.

    Labels are numbers of label sets, rows of the data's table of distinct sets; data
    with one label per image has a set for each class.
    """

    metrics = (MAP, F1, VAL_LOSS)
    takes_label_sets = True
    label_sets: Tensor

    def __init__(self, model: nn.Module, context: TaskContext, args: NoArgs) -> None:
        super().__init__(model, context, args)
        sets = context.label_sets
        if sets is None:
            sets = sets_of_classes(context.num_classes)
        self.register_buffer("label_sets", index_table(sets), persistent=False)

    def views(
        self,
        pixels: tuple[Pixels, ...],
        labels: Labels,
        rng: CounterRng,
        augmentation: Augmentation,
    ) -> Views:
        """One augmented image and its target, mixed and smoothed as the recipe says."""
        targets = self.multi_hot(labels)
        targets = smoothed(targets, augmentation.smoothing)
        images, targets = augment_with_targets(pixels[0], targets, rng, augmentation)
        return {"images": images, "targets": targets}

    def forward(self, views: Views) -> Numbers:
        """The binary cross-entropy, averaged over classes and images."""
        logits = self.model(views["images"])
        loss = F.binary_cross_entropy_with_logits(logits, views["targets"])
        return {"loss": loss}

    def score(self, model: nn.Module, images: Images, labels: Labels) -> Views:
        """The loss and the probability of each class, of each image."""
        return score_multilabel(model, images, self.multi_hot(labels))

    def summarize(self, values: Views) -> dict[str, float]:
        """Mean average precision, F1 and the loss."""
        table = self.label_sets.cpu()
        targets = multi_hot(table, values["label"], self.context.num_classes)
        scores = MultilabelScores.of(values["probabilities"], targets.bool())
        return {
            "map": scores.mean_average_precision,
            "f1": scores.overall_f1,
            "val_loss": values["val_loss"].double().mean().item(),
        }

    def multi_hot(self, labels: Labels) -> Float[Tensor, "batch classes"]:
        """1 for the classes of each image, 0 for the others."""
        return multi_hot(self.label_sets, labels, self.context.num_classes)


def index_table(sets: LabelSets) -> Tensor:
    """The table of label sets for `multi_hot`, on the CPU."""
    return torch.from_numpy(np.ascontiguousarray(sets)).long()


def multi_hot(
    sets: Tensor, labels: Labels, num_classes: int
) -> Float[Tensor, "batch classes"]:
    """1 for the classes in the set of each label, 0 for the others."""
    classes = sets[labels]
    classes = torch.where(classes < 0, num_classes, classes)
    hot = torch.zeros(len(labels), num_classes + 1, device=labels.device)
    return hot.scatter(1, classes, 1.0)[:, :num_classes]


def score_multilabel(
    model: nn.Module, images: Images, targets: Float[Tensor, "batch classes"]
) -> Views:
    """Per image: the loss, and the probability of each class."""
    logits = model(images).float()
    losses = F.binary_cross_entropy_with_logits(logits, targets, reduction="none")
    return {"val_loss": losses.mean(1), "probabilities": logits.sigmoid()}
