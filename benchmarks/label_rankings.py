"""Rankings of suspicious labels compared, on wrong validation labels of 20 draws.

    python benchmarks/label_rankings.py runs/noisy-0 noisy-0 path/to/cifar10 --seed 0

takes a run and data of `wrong_labels.py`, and gives 5 % of the clean validation labels
another class: any, or one that is often confused with it.
"""

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from wrong_labels import NUM_VAL, SHARE_WRONG, draw_images

from t2t.analysis.label_errors import find_label_errors
from t2t.shapes import Images, Labels
from t2t.training.evaluation.evaluate_model import evaluate_model

NUM_DRAWS = 20
ANY = {label: [other for other in range(10) if other != label] for label in range(10)}
CONFUSED = {
    **{0: [2, 8], 1: [9], 2: [0, 4], 3: [5], 4: [7, 2]},
    **{5: [3], 6: [3, 2], 7: [4, 5], 8: [0], 9: [1]},
}
"""The classes that each of CIFAR-10's is often confused with."""


def score_probabilities(
    model: nn.Module, images: Images, labels: Labels
) -> dict[str, Tensor]:
    """The probabilities of all classes."""
    return {"probabilities": model(images).float().softmax(1)}


def rankings(probabilities: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Rows of images, the most suspicious first, by several measures."""
    confidence, predicted = probabilities.max(1)
    of_label = probabilities[torch.arange(len(labels)), labels]
    means = torch.stack([of_label[labels == label].mean() for label in range(10)])
    is_sure = (confidence >= means[predicted]) & (predicted != labels)
    margin = of_label - confidence
    values = {"label": labels, "predicted": predicted, "label_probability": of_label}
    return {
        "p(label) / class mean, below 0.1 (used)": find_label_errors(values, 10),
        "p(label) / class mean": (of_label / means[labels]).argsort(),
        "p(label)": of_label.argsort(),
        "p(label) / p(predicted)": (of_label / confidence).argsort(),
        "p(label) - p(predicted)": margin.argsort(),
        "the same, of confident predictions": (margin - 2.0 * is_sure).argsort(),
    }


def mean_and_std(values: Sequence[float]) -> list[float]:
    """The mean and the standard deviation."""
    return [round(statistics.mean(values), 1), round(statistics.stdev(values), 1)]


def compare(
    probabilities: Tensor, clean: Tensor, wrong_classes: dict[int, list[int]]
) -> dict[str, dict[str, list[float]]]:
    """For each ranking, wrong labels among the first 100, and in the whole list."""
    counts: dict[str, list[tuple[int, int, int]]] = {}
    for draw in range(NUM_DRAWS):
        rng = np.random.default_rng(draw)
        changed = rng.permutation(NUM_VAL)[: round(SHARE_WRONG * NUM_VAL)]
        labels = clean.clone()
        for index in changed.tolist():
            labels[index] = int(rng.choice(wrong_classes[int(clean[index])]))
        for name, ranked in rankings(probabilities, labels).items():
            hits = np.isin(ranked.numpy(), changed)
            row = (int(hits[:100].sum()), int(hits.sum()), len(hits))
            counts.setdefault(name, []).append(row)
    return {
        name: {
            "right of the first 100": mean_and_std([row[0] for row in rows]),
            "found of 100": mean_and_std([row[1] for row in rows]),
            "listed": mean_and_std([row[2] for row in rows]),
        }
        for name, rows in counts.items()
    }


def main() -> None:
    """Prints the comparison as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("cifar10", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    report = evaluate_model(given.run, data=given.data, also=score_probabilities)
    assert report is not None
    probabilities = report.values["probabilities"].double()
    rows = draw_images(given.cifar10, "test", NUM_VAL, given.seed)
    clean = torch.tensor([row["label"] for row in rows])
    found = {
        "any class": compare(probabilities, clean, ANY),
        "confused class": compare(probabilities, clean, CONFUSED),
    }
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
