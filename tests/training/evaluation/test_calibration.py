"""Calibration: the error by its definition, and the temperature of least loss."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.calibration import calibration_curve
from torch import Tensor
from torch.nn.functional import cross_entropy

from t2t.training.evaluation.calibration import (
    NUM_BINS,
    best_temperature,
    calibrate,
    calibration_error,
)


def reference(confidence: Tensor, is_hit: Tensor) -> float:
    """Guo et al.: the sum over bins of their share times |accuracy − confidence|."""
    total = 0.0
    for number in range(NUM_BINS):
        low, high = number / NUM_BINS, (number + 1) / NUM_BINS
        inside = (confidence > low) & (confidence <= high)
        if inside.any():
            gap = is_hit[inside].double().mean() - confidence[inside].double().mean()
            total += inside.double().mean().item() * abs(gap.item())
    return 100 * total


def by_scikit_learn(confidence: Tensor, is_hit: Tensor) -> float:
    """The same from scikit-learn's reliability diagram."""
    hit_rate, mean = calibration_curve(is_hit, confidence, n_bins=NUM_BINS)
    edges = np.linspace(0, 1, NUM_BINS + 1)
    bins = np.searchsorted(edges[1:-1], confidence.numpy())
    counts = np.bincount(bins, minlength=NUM_BINS)
    counts = counts[counts > 0]
    return float(100 * (counts * np.abs(hit_rate - mean)).sum() / counts.sum())


@given(seed=st.integers(0, 10**6), num=st.integers(2, 300))
@settings(max_examples=30, deadline=None)
def test_the_error_is_that_of_the_definition(seed: int, num: int) -> None:
    random = torch.Generator().manual_seed(seed)
    confidence = 0.1 + 0.9 * torch.rand(num, generator=random, dtype=torch.float64)
    is_hit = torch.rand(num, generator=random) < confidence**2
    found = calibration_error(confidence, is_hit)
    assert found == pytest.approx(reference(confidence, is_hit), abs=1e-9)
    assert found == pytest.approx(by_scikit_learn(confidence, is_hit), abs=1e-9)


def test_a_bin_holds_its_upper_edge() -> None:
    # 1 belongs to the last bin, with what is just below it: 1 hit of 2 there.
    confidence, is_hit = torch.tensor([1.0, 0.96]), torch.tensor([False, True])
    assert calibration_error(confidence, is_hit) == pytest.approx(100 * 0.48, abs=1e-4)


def logits_and_labels(num: int, sharpness: float) -> tuple[Tensor, Tensor]:
    """Labels drawn with the probabilities of logits, which are then scaled."""
    random = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(num, 4, generator=random)
    labels = torch.multinomial(logits.softmax(1), 1, generator=random)[:, 0]
    return sharpness * logits, labels


@pytest.mark.parametrize("sharpness", [0.3, 1.0, 4.0])
def test_the_temperature_undoes_a_scale_and_has_the_least_loss(
    sharpness: float,
) -> None:
    logits, labels = logits_and_labels(20_000, sharpness)
    found = best_temperature(logits, labels)
    assert found == pytest.approx(sharpness, rel=0.03)
    losses = [cross_entropy(logits / (found * by), labels) for by in (0.99, 1, 1.01)]
    assert losses[1] < losses[0]
    assert losses[1] < losses[2]


def test_a_fit_on_half_is_measured_on_the_other() -> None:
    logits, labels = logits_and_labels(4_001, 3.0)
    confidence, predicted = logits.softmax(1).max(1)
    found = calibrate(confidence, predicted == labels, labels, logits)
    held = found.held_out
    assert held is not None
    assert found.temperature is not None
    assert held.num_images == 2_000
    assert held.temperature != found.temperature
    assert held.ece < 0.4 * held.ece_before
    assert held.loss < held.loss_before
    assert held.loss_before == pytest.approx(
        cross_entropy(logits[1::2], labels[1::2]).item()
    )


def test_without_mistakes_there_is_no_best_temperature() -> None:
    logits = torch.eye(3).repeat(4, 1)
    labels = torch.arange(3).repeat(4)
    confidence = logits.softmax(1).amax(1)
    found = calibrate(confidence, labels == labels, labels, logits)
    assert (found.temperature, found.held_out) == (None, None)
    only_error = calibrate(confidence, labels == labels, labels)
    assert only_error.ece == found.ece > 0


def test_one_image_is_no_halves() -> None:
    found = calibrate(
        torch.tensor([0.9]), torch.tensor([True]), torch.tensor([0]), torch.eye(1, 3)
    )
    assert found.held_out is None


def test_a_fifth_is_the_upper_edge_of_the_third_of_15_bins() -> None:
    edge = 3 / 15
    for other, together in ((0.14, True), (0.22, False)):
        confidence = torch.tensor([other, edge], dtype=torch.float64)
        error = calibration_error(confidence, torch.tensor([True, False]))
        gaps = 1 - other, -edge
        wanted = abs(sum(gaps)) if together else sum(map(abs, gaps))
        assert error == pytest.approx(100 * wanted / 2)
