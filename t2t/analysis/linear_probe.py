"""Linear probe: multinomial logistic regression on frozen features."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from t2t.errors import UserError

FeatureRows = Float[Tensor, "images width"]
ClassNumbers = Int64[Tensor, " images"]

PENALTIES = tuple(10.0 ** (-half / 2) for half in range(13))
"""Weights of the L2 penalty to choose from, strongest first: 1 to 1e-6."""
DEFAULT_PENALTY = 1e-2
"""The weight where there are too few images to hold some out."""
PATIENCE = 3
"""Weaker penalties without a better accuracy, after which the search stops."""
_MAX_ITERATIONS = 300
# Logits that are in memory at once: a million images of a thousand classes are 4 GB.
_LOGITS_AT_ONCE = 1 << 26


@dataclass(frozen=True)
class LinearProbe:
    """A linear classifier of standardised features."""

    mean: Float[Tensor, " width"]
    std: Float[Tensor, " width"]
    weights: Float[Tensor, "width_and_bias classes"]
    """The bias is the last row."""

    def predict(self, features: FeatureRows) -> ClassNumbers:
        """The most probable class of each image."""
        rows = _rows_at_once(self.weights)
        parts = [self.logits(part).argmax(1) for part in features.split(rows)]
        return torch.cat(parts)

    def logits(self, features: FeatureRows) -> Float[Tensor, "images classes"]:
        """A score for each class; their softmax is the probabilities."""
        return torch.addmm(
            self.weights[-1], (features - self.mean) / self.std, self.weights[:-1]
        )


def fit_linear_probe(
    features: FeatureRows,
    labels: ClassNumbers,
    num_classes: int,
    penalty: float,
    start: LinearProbe | None = None,
) -> LinearProbe:
    """Minimises mean cross-entropy + penalty / 2 · |weights|² by full-batch L-BFGS.

    scikit-learn's `LogisticRegression` with C = 1 / (penalty · images) minimises the
    same. The bias has no penalty.
    """
    mean, std = mean_and_std(features)
    standardised = (features - mean) / std
    if start is None:
        weights = features.new_zeros(features.shape[1] + 1, num_classes)
    else:
        weights = start.weights.clone()
    optimizer = torch.optim.LBFGS(
        [weights],
        max_iter=_MAX_ITERATIONS,
        history_size=10,
        tolerance_grad=1e-6,
        tolerance_change=1e-9,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        loss, weights.grad = _loss_and_gradient(weights, standardised, labels, penalty)
        return loss

    optimizer.step(closure)
    return LinearProbe(mean, std, weights)


def mean_and_std(features: FeatureRows) -> tuple[Tensor, Tensor]:
    """The mean and standard deviation of features; of a constant one, 1."""
    std = features.std(0, correction=0)
    is_constant = std <= 1e-6 * std.max()
    return features.mean(0), torch.where(is_constant, torch.ones_like(std), std)


def _loss_and_gradient(
    weights: Tensor, features: FeatureRows, labels: ClassNumbers, penalty: float
) -> tuple[Tensor, Tensor]:
    """The objective and its gradient, by parts of the images."""
    num = len(features)
    gradient = torch.zeros_like(weights)
    gradient[:-1] = penalty * weights[:-1]
    loss = penalty / 2 * weights[:-1].square().sum()
    rows = _rows_at_once(weights)
    for part, targets in zip(features.split(rows), labels.split(rows), strict=True):
        logits = torch.addmm(weights[-1], part, weights[:-1])
        loss = loss + F.cross_entropy(logits, targets, reduction="sum") / num
        errors = logits.softmax(1)
        errors[torch.arange(len(part), device=part.device), targets] -= 1
        gradient[:-1].addmm_(part.T, errors, alpha=1 / num)
        gradient[-1] += errors.sum(0) / num
    return loss, gradient


def _rows_at_once(weights: Tensor) -> int:
    return max(_LOGITS_AT_ONCE // weights.shape[1], 1)


def choose_penalty(
    train: tuple[FeatureRows, ClassNumbers],
    held_out: tuple[FeatureRows, ClassNumbers],
    num_classes: int,
    penalties: Sequence[float] = PENALTIES,
) -> float:
    """The penalty with the best accuracy on held-out images; of equal ones, the first.

    Each fit starts from the one before, and a few without a gain end the search.
    """
    if not penalties:
        raise UserError("There are no penalties to choose from.")
    best, best_correct, since_best = penalties[0], -1, 0
    for penalty, probe in _path(train, num_classes, penalties):
        correct = int((probe.predict(held_out[0]) == held_out[1]).sum())
        if correct > best_correct:
            best, best_correct, since_best = penalty, correct, 0
        else:
            since_best += 1
        if since_best == PATIENCE:
            break
    return best


def _path(
    train: tuple[FeatureRows, ClassNumbers],
    num_classes: int,
    penalties: Sequence[float],
) -> Iterator[tuple[float, LinearProbe]]:
    """A probe for each penalty, each started from the one before."""
    probe = None
    for penalty in penalties:
        probe = fit_linear_probe(*train, num_classes, penalty, probe)
        yield penalty, probe
