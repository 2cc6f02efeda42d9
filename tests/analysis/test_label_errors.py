"""Likely wrong labels: those that contradict the model are found."""

import numpy as np
import torch
from torch import Tensor

from t2t.analysis.label_errors import find_label_errors


def predicted(probabilities: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """What an evaluation knows of each image."""
    confidence, predictions = probabilities.max(1)
    rows = torch.arange(len(labels))
    return {
        "label": labels,
        "predicted": predictions,
        "confidence": confidence,
        "label_probability": probabilities[rows, labels],
    }


def a_good_model(
    labels: Tensor, num_classes: int, sharpness: Tensor | float = 6.0
) -> Tensor:
    """Probabilities of a model that is mostly right."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(len(labels), num_classes, generator=generator)
    logits[torch.arange(len(labels)), labels] += sharpness
    return logits.softmax(1)


def test_labels_changed_at_random_are_found() -> None:
    random = np.random.default_rng(0)
    truth = torch.from_numpy(random.integers(0, 5, 1000))
    labels = truth.clone()
    changed = torch.from_numpy(random.permutation(1000)[:50])
    labels[changed] = (labels[changed] + 1) % 5
    found = find_label_errors(predicted(a_good_model(truth, 5), labels), 5)
    hits = torch.isin(found, changed)
    assert hits[:40].all()
    assert hits.sum() >= 48
    assert len(found) <= 55


def test_an_uncertain_class_is_not_suspicious_as_a_whole() -> None:
    labels = torch.tensor([0, 1]).repeat(200)
    # The model gives class 1 little probability wherever it is the label.
    probabilities = torch.tensor([[0.99, 0.01], [0.93, 0.07]]).repeat(200, 1)
    probabilities[1] = torch.tensor([0.999, 0.001])
    found = find_label_errors(predicted(probabilities, labels), 2)
    assert found.tolist() == [1]


def test_without_mistakes_nothing_is_found() -> None:
    labels = torch.arange(3).repeat(10)
    assert len(find_label_errors(predicted(a_good_model(labels, 3), labels), 3)) == 0


def test_classes_with_one_image_or_none() -> None:
    truth = torch.zeros(30, dtype=torch.int64)
    labels = truth.clone()
    labels[4] = 2
    found = find_label_errors(predicted(a_good_model(truth, 1000, 12.0), labels), 1000)
    assert found.tolist() == [4]
