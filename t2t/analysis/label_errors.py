"""Likely wrong labels, by the probabilities that a model gives."""

from collections.abc import Mapping

from jaxtyping import Float, Int64
from torch import Tensor

MAX_SHARE = 0.1
"""A label is suspicious if its probability is below this share of its class's mean.

Of the rankings tried on CIFAR-10, this share finds most (records/cifar10-wrong-labels).
"""
_PRIOR_COUNT = 5.0
"""Images of average probability added to each class, since some have few."""


def find_label_errors(
    values: Mapping[str, Tensor], num_classes: int
) -> Int64[Tensor, " images"]:
    """The rows of images whose label is likely wrong, the most suspicious first.

    The model predicts another class for them, and the probability of their label is a
    small share of its mean over the images with this label. `values` are label,
    predicted and label_probability of every image.
    """
    labels = values["label"]
    probability = values["label_probability"].double()
    shares = probability / class_means(labels, probability, num_classes)[labels]
    is_suspicious = (shares < MAX_SHARE) & (values["predicted"] != labels)
    rows = is_suspicious.nonzero()[:, 0]
    return rows[shares[rows].argsort(stable=True)]


def class_means(
    labels: Int64[Tensor, " images"],
    probability: Float[Tensor, " images"],
    num_classes: int,
) -> Float[Tensor, " classes"]:
    """The mean probability of the label in the images of each class."""
    sums = probability.new_zeros(num_classes).index_add_(0, labels, probability)
    counts = labels.bincount(minlength=num_classes)
    return (sums + _PRIOR_COUNT * probability.mean()) / (counts + _PRIOR_COUNT)
