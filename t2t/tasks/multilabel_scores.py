"""Scores of multi-label predictions: average precision and F1 of every class."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

THRESHOLD = 0.5
"""Probability from which a class is predicted."""
Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class MultilabelScores:
    """The scores of all classes, in their order; shares are in per cent."""

    average_precision: npt.NDArray[np.float64]
    """NaN for a class that no image has, and for probabilities that are not finite."""
    num_true: Counts
    """Images that have the class."""
    num_predicted: Counts
    num_correct: Counts
    """Images that have the class and are predicted to have it."""

    @classmethod
    def of(cls, probabilities: Tensor, targets: Tensor) -> "MultilabelScores":
        """The scores of probabilities against true classes, images × classes each."""
        likely, true = probabilities.double().numpy(), targets.numpy() > 0
        predicted = likely >= THRESHOLD
        columns = zip(true.T, likely.T, strict=True)
        return cls(
            np.array([average_precision(each, given) for each, given in columns]),
            true.sum(0),
            predicted.sum(0),
            (true & predicted).sum(0),
        )

    @property
    def mean_average_precision(self) -> float:
        """The mean over the classes that images have; NaN if it is not finite."""
        scores = self.average_precision[self.num_true > 0]
        return float(scores.mean()) if len(scores) else math.nan

    @property
    def f1(self) -> npt.NDArray[np.float64]:
        """F1 of each class at the threshold; NaN if it is not true nor predicted."""
        return f1_of(self.num_correct, self.num_predicted, self.num_true)

    @property
    def overall_f1(self) -> float:
        """F1 of all classes together at the threshold (micro F1)."""
        sums = (self.num_correct.sum(), self.num_predicted.sum(), self.num_true.sum())
        return float(f1_of(*(np.array(each) for each in sums)))


def average_precision(true: npt.NDArray[np.bool_], likely: npt.NDArray) -> float:  # type: ignore[type-arg]
    """The average precision of one class, in per cent, as scikit-learn computes it."""
    from sklearn.metrics import average_precision_score

    if not true.any() or not np.isfinite(likely).all():
        return math.nan
    return 100 * float(average_precision_score(true, likely))


def f1_of(correct: Counts, predicted: Counts, true: Counts) -> npt.NDArray[np.float64]:
    """The harmonic mean of precision and recall, in per cent."""
    total = predicted + true
    share = 2 * correct / np.maximum(total, 1)
    return np.where(total > 0, 100 * share, math.nan)
