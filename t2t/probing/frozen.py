"""Scores frozen features: linear probe, kNN and few-shot."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from t2t.analysis.few_shot import draw_shots, least_squares_scores
from t2t.analysis.knn import DEFAULT_K, choose_k, knn_predict
from t2t.analysis.linear_probe import (
    DEFAULT_PENALTY,
    ClassNumbers,
    FeatureRows,
    choose_penalty,
    fit_linear_probe,
)
from t2t.data.sources.splitting import held_out_indices
from t2t.probing.features import Features
from t2t.probing.options import METHODS, ProbeOptions
from t2t.probing.report import ProbeResult

Labelled = tuple[FeatureRows, ClassNumbers]

HOLDOUT_SHARE = 0.2
MAX_HELD_OUT = 10_000
"""Training images that choose the penalty and k: a fifth, but no more than this."""


@dataclass(frozen=True, kw_only=True)
class FrozenFeatures:
    """Features and labels to learn from and to evaluate on, on one device."""

    train: FeatureRows
    train_labels: ClassNumbers
    val: FeatureRows
    val_labels: ClassNumbers
    num_classes: int

    @classmethod
    def of(cls, train: Features, val: Features, device: torch.device) -> Self:
        """The features of both, on CUDA or else on the CPU.

        Apple's GPUs lack the double precision that few-shot needs.
        """
        chosen = device if device.type == "cuda" else torch.device("cpu")
        return cls(
            train=train.values.to(chosen),
            train_labels=train.labels.to(chosen),
            val=val.values.to(chosen),
            val_labels=val.labels.to(chosen),
            num_classes=len(train.classes),
        )

    def accuracy(self, predictions: ClassNumbers) -> float:
        """Per cent of the evaluated images whose prediction is their label."""
        return 100 * float((predictions == self.val_labels).double().mean())

    @property
    def fewest(self) -> int:
        """How many training images the smallest class has."""
        return int(self.train_labels.bincount(minlength=self.num_classes).min())

    def rows(self, indices: Tensor) -> Labelled:
        """Some of the training features and their labels."""
        return self.train[indices], self.train_labels[indices]

    def holdout(self, seed: int) -> tuple[Labelled, Labelled] | None:
        """The training features without and with those held out to choose settings.

        None if a class would be left without images on either side.
        """
        labels = self.train_labels.cpu().numpy()
        num = min(round(HOLDOUT_SHARE * len(labels)), MAX_HELD_OUT)
        held = torch.zeros(len(labels), dtype=torch.bool)
        if num:
            held[torch.from_numpy(held_out_indices(labels, num, seed, left=1))] = True
        if int(held.sum()) < self.num_classes:
            return None
        kept = (~held).nonzero()[:, 0].to(self.train.device)
        return self.rows(kept), self.rows(held.nonzero()[:, 0].to(self.train.device))


def score_frozen(
    found: FrozenFeatures, options: ProbeOptions
) -> tuple[ProbeResult, ...]:
    """The results of the methods that need only features, in a fixed order."""
    scoring: dict[str, Callable[[], list[ProbeResult]]] = {
        "linear": lambda: [score_linear(found, options)],
        "knn": lambda: [score_knn(found, options)],
        "few-shot": lambda: [
            score_few_shot(found, shots, options)
            for shots in options.shots_for(found.fewest)
        ],
    }
    results: list[ProbeResult] = []
    for method, score in scoring.items():
        if method in options.methods:
            started = time.perf_counter()
            scored = score()
            seconds = (time.perf_counter() - started) / len(scored)
            results += [replace(each, seconds=seconds) for each in scored]
    return tuple(results)


def score_linear(found: FrozenFeatures, options: ProbeOptions) -> ProbeResult:
    """Logistic regression, with a penalty chosen on held-out training images."""
    held = found.holdout(options.seed)
    if held is None:
        penalty, how = DEFAULT_PENALTY, "too few images to choose it"
    else:
        penalty = choose_penalty(*held, found.num_classes)
        how = f"chosen on {len(held[1][1]):,} of them"
    fitted = fit_linear_probe(
        found.train, found.train_labels, found.num_classes, penalty
    )
    return ProbeResult(
        method="linear",
        label=METHODS["linear"],
        top1=found.accuracy(fitted.predict(found.val)),
        num_images=len(found.train),
        setting=f"L2 penalty {penalty:.1e}, {how}",
        details={"penalty": penalty, "penalty_is_chosen": held is not None},
    )


def score_knn(found: FrozenFeatures, options: ProbeOptions) -> ProbeResult:
    """kNN, with a k chosen on held-out training images unless it is given."""
    held = found.holdout(options.seed) if options.k is None else None
    if options.k is not None:
        k, how = options.k, "as given"
    elif held is None:
        k, how = min(DEFAULT_K, len(found.train)), "too few images to choose it"
    else:
        k = choose_k(*held, found.num_classes)
        how = f"chosen on {len(held[1][1]):,} of them"
    predictions = knn_predict(
        found.val, found.train, found.train_labels, found.num_classes, [k]
    )
    return ProbeResult(
        method="knn",
        label=METHODS["knn"],
        top1=found.accuracy(predictions[k]),
        num_images=len(found.train),
        setting=f"k = {k}, {how}",
        details={"k": k, "k_is_chosen": held is not None},
    )


def score_few_shot(
    found: FrozenFeatures, shots: int, options: ProbeOptions
) -> ProbeResult:
    """Least squares on a few images per class: mean and spread over the draws."""
    labels = found.train_labels.cpu().numpy()
    seeds = [options.seed + draw for draw in range(options.draws)]
    scores, num_drawn = [], 0
    for seed in seeds:
        drawn = torch.from_numpy(draw_shots(labels, shots, seed))
        num_drawn = len(drawn)
        rows = found.rows(drawn.to(found.train.device))
        predicted = least_squares_scores(found.val, *rows, found.num_classes).argmax(1)
        scores.append(found.accuracy(predicted))
    is_plural = len(seeds) > 1
    return ProbeResult(
        method="few-shot",
        label=f"{METHODS['few-shot']}, {shots} per class",
        top1=statistics.mean(scores),
        std=statistics.stdev(scores) if is_plural else None,
        num_images=num_drawn,
        setting=f"{len(seeds)} draw{'s' * is_plural}",
        details={
            "shots": shots,
            "seeds": seeds,
            "top1_of_draws": [round(each, 4) for each in scores],
        },
    )
