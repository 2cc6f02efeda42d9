"""Likely wrong labels, by the probabilities that a model gives (confident learning)."""

from collections.abc import Mapping

import torch
from jaxtyping import Int64
from torch import Tensor


def find_label_errors(
    values: Mapping[str, Tensor], num_classes: int
) -> Int64[Tensor, " images"]:
    """The rows of images whose label is likely wrong, the most suspicious first.

    The model predicts another class than the label, and is at least as sure of it as it
    is on average of images that have this class as their label. The threshold of each
    class allows for classes that a model is less sure of. `values` are of every image:
    label, predicted, confidence and label_probability.
    """
    labels, predicted = values["label"], values["predicted"]
    confidence, of_label = (
        values[name].double() for name in ("confidence", "label_probability")
    )
    thresholds = class_thresholds(labels, of_label, num_classes)
    is_sure = confidence >= thresholds[predicted]
    rows = (is_sure & (predicted != labels)).nonzero()[:, 0]
    margin = (confidence - of_label)[rows]
    return rows[margin.argsort(descending=True, stable=True)]


def class_thresholds(labels: Tensor, of_label: Tensor, num_classes: int) -> Tensor:
    """The mean probability of the label over the images of each class.

    A class without images gets the mean of all images.
    """
    sums = of_label.new_zeros(num_classes).index_add_(0, labels, of_label)
    counts = labels.bincount(minlength=num_classes)
    return torch.where(counts > 0, sums / counts.clamp(min=1), of_label.mean())
