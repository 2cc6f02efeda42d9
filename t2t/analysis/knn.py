"""kNN classification by cosine similarity, weighted as for DINO."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from t2t.analysis.linear_probe import ClassNumbers, FeatureRows

TEMPERATURE = 0.07
"""A neighbor of cosine similarity s votes with the weight exp(s / 0.07)."""
NUMBERS_OF_NEIGHBORS = (5, 10, 20, 50, 100, 200)
"""What k is chosen from."""
DEFAULT_K = 20
"""The k where there are too few images to hold some out."""
# Similarities that are in memory at once.
_SIMILARITIES_AT_ONCE = 1 << 26


def nearest(
    queries: FeatureRows, features: FeatureRows, num: int
) -> tuple[Float[Tensor, "queries nearest"], Int64[Tensor, "queries nearest"]]:
    """Cosine similarities and indices of the nearest features, nearest first."""
    directions = F.normalize(features, dim=1)
    rows = max(_SIMILARITIES_AT_ONCE // len(features), 1)
    parts = [
        (F.normalize(part, dim=1) @ directions.T).topk(min(num, len(features)), dim=1)
        for part in queries.split(rows)
    ]
    similarities, indices = (torch.cat(each) for each in zip(*parts, strict=True))
    return similarities, indices


def knn_predict(
    queries: FeatureRows,
    features: FeatureRows,
    labels: ClassNumbers,
    num_classes: int,
    numbers: Sequence[int],
    temperature: float = TEMPERATURE,
) -> dict[int, ClassNumbers]:
    """The predicted class of each query, for each number of neighbors."""
    similarities, indices = nearest(queries, features, max(numbers))
    weights = (similarities / temperature).exp()
    voted = labels[indices]
    votes = queries.new_zeros(len(queries), num_classes)
    predictions, counted = {}, 0
    for number in sorted(numbers):
        votes.scatter_add_(
            1, voted[:, counted:number], weights[:, counted:number].contiguous()
        )
        predictions[number], counted = votes.argmax(1), number
    return predictions


def choose_k(
    train: tuple[FeatureRows, ClassNumbers],
    held_out: tuple[FeatureRows, ClassNumbers],
    num_classes: int,
    numbers: Sequence[int] = NUMBERS_OF_NEIGHBORS,
) -> int:
    """The number of neighbors that classifies held-out images best."""
    features, labels = held_out
    possible = [number for number in numbers if number <= len(train[0])]
    possible = possible or [min(DEFAULT_K, len(train[0]))]
    predictions = knn_predict(features, *train, num_classes, possible)
    return max(possible, key=lambda k: int((predictions[k] == labels).sum()))
