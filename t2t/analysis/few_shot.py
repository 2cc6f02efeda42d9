"""Few-shot evaluation: regularised least squares on a few images per class."""

import numpy as np
import torch
from torch import Tensor

from t2t.analysis.linear_probe import ClassNumbers, FeatureRows, mean_and_std
from t2t.data.sources.base import Indices
from t2t.data.sources.splitting import permutation

PENALTIES = tuple(10.0**power for power in range(-4, 4))
"""Weights of the L2 penalty to choose from."""


def draw_shots(labels: Indices, shots: int, seed: int) -> Indices:
    """Indices of `shots` images of every class, drawn by a seed."""
    order = permutation(len(labels), seed)
    order = order[np.argsort(labels[order], kind="stable")]
    counts = np.bincount(labels)
    rank = np.arange(len(labels)) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.sort(order[rank < shots])


def least_squares_scores(
    queries: FeatureRows,
    features: FeatureRows,
    labels: ClassNumbers,
    num_classes: int,
    penalty: float | None = None,
) -> Tensor:
    """Scores of the classes by ridge regression onto targets of −1 and 1, as for ViT.

    The regression has an intercept. Features are standardised and divided by the root
    of their number, so that a penalty means the same for any width. None chooses the
    penalty with the smallest squared error on each image when it is left out.
    """
    rows, others = features.double(), queries.double()
    mean, std = mean_and_std(rows)
    scale = std * rows.shape[1] ** 0.5
    rows, others = (rows - mean) / scale, (others - mean) / scale
    targets = rows.new_full((len(rows), num_classes), -1.0)
    targets[torch.arange(len(rows), device=rows.device), labels] = 1.0
    intercept = targets.mean(0)
    left, sizes, right = torch.linalg.svd(rows, full_matrices=False)
    along = left.T @ (targets - intercept)
    if penalty is None:
        errors = {
            each: _left_out_error(left, sizes, targets - intercept, each)
            for each in PENALTIES
        }
        penalty = min(errors, key=errors.__getitem__)
    shrunk = (sizes / (sizes.square() + penalty))[:, None] * along
    return others @ (right.T @ shrunk) + intercept


def _left_out_error(
    left: Tensor, sizes: Tensor, targets: Tensor, penalty: float
) -> float:
    """The mean squared error for each image when it is left out, in closed form."""
    share = sizes.square() / (sizes.square() + penalty)
    fitted = left @ (share[:, None] * (left.T @ targets))
    leverage = (left.square() * share).sum(1) + 1 / len(left)
    errors = (targets - fitted) / (1 - leverage).clamp_min(1e-9)[:, None]
    return float(errors.square().mean())
