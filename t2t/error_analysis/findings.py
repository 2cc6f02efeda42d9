"""Findings of an evaluation: images to look at, and why."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jaxtyping import Int64
from torch import Tensor

from t2t.analysis.label_errors import find_label_errors
from t2t.analysis.near_duplicates import Pair, find_near_duplicates
from t2t.error_analysis.predictions import ImagePrediction, Predictions


@dataclass(frozen=True)
class Confusion:
    """A class, and another that its images are predicted as."""

    label: str
    predicted: str
    num_images: int
    num_of_label: int
    """The images of the class."""
    rows: Int64[Tensor, " examples"]
    """These mistakes, the most confident first."""


@dataclass(frozen=True)
class Findings:
    """Images to look at; each list is sorted, the most suspicious first."""

    evaluated: Predictions
    split: str
    trained_on: Predictions | None
    """None if there are no training images."""
    note: str
    """Where the training images are, or why there are none."""
    mistakes: Int64[Tensor, " images"]
    """Rows of wrong predictions."""
    wrong_labels: Int64[Tensor, " images"]
    """Rows of evaluated images whose label is likely wrong."""
    wrong_train_labels: Int64[Tensor, " images"]
    """Rows of training images whose label is likely wrong."""
    duplicates: list[Pair]
    """Rows of evaluated images and of training images that look the same.

    Of an evaluation on the training images, both are of these.
    """
    confusions: list[Confusion]

    @property
    def duplicates_of(self) -> Predictions:
        """The set that the second image of a pair belongs to."""
        return self.evaluated if self.trained_on is None else self.trained_on

    def summary(self) -> str:
        """How many of each were found."""
        num_labels = len(self.wrong_labels) + len(self.wrong_train_labels)
        return (
            f"{len(self.mistakes):,} mistakes, {num_labels:,} likely wrong labels, "
            f"{len(self.duplicates):,} near-duplicates"
        )

    def records(self) -> list[dict[str, Any]]:
        """A row of a table for every finding: what, which image, and which other."""
        second_split = self.split if self.trained_on is None else "train"
        rows = [
            self._record("mistake", self.split, each)
            for each in self.evaluated.rows(self.mistakes)
        ]
        for split, predictions, found in (
            (self.split, self.evaluated, self.wrong_labels),
            ("train", self.trained_on, self.wrong_train_labels),
        ):
            if predictions is not None:
                rows += [
                    self._record("wrong label", split, each)
                    for each in predictions.rows(found)
                ]
        for pair in self.duplicates:
            other = self.duplicates_of[pair.second]
            rows.append(
                {
                    **self._record(
                        "near-duplicate", self.split, self.evaluated[pair.first]
                    ),
                    "other_split": second_split,
                    "other_path": other.path,
                    "other_label": other.label,
                    "distance": round(pair.distance, 4),
                }
            )
        return rows

    def _record(
        self, finding: str, split: str, image: ImagePrediction
    ) -> dict[str, Any]:
        return {
            "finding": finding,
            "split": split,
            "path": image.path,
            "label": image.label,
            "predicted": image.predicted,
            "confidence": round(image.confidence, 6),
            "label_probability": round(image.label_probability, 6),
            "other_split": None,
            "other_path": None,
            "other_label": None,
            "distance": None,
        }

    def as_json(self) -> dict[str, Any]:
        """All findings by their kind."""
        kinds = {
            "mistakes": "mistake",
            "wrong_labels": "wrong label",
            "near_duplicates": "near-duplicate",
        }
        records = self.records()
        return {
            "note": self.note,
            **{
                key: [
                    {
                        name: value
                        for name, value in record.items()
                        if name != "finding" and value is not None
                    }
                    for record in records
                    if record["finding"] == kind
                ]
                for key, kind in kinds.items()
            },
        }


def find(
    evaluated: Predictions, split: str, trained_on: Predictions | None, note: str
) -> Findings:
    """All findings; both sets need values of `colours`."""
    others = None if split == "train" else trained_on
    no_rows = evaluated.wrong_rows[:0]
    duplicates: list[Pair] = []
    if others is not None or split == "train":
        second = None if others is None else others.values["colours"]
        duplicates = find_near_duplicates(evaluated.values["colours"], second)
        duplicates = different_labels_first(duplicates, evaluated, others or evaluated)
    return Findings(
        evaluated=evaluated,
        split=split,
        trained_on=others,
        note=note,
        mistakes=evaluated.wrong_rows,
        wrong_labels=find_label_errors(evaluated.values, len(evaluated.names)),
        wrong_train_labels=(
            no_rows
            if others is None
            else find_label_errors(others.values, len(others.names))
        ),
        duplicates=duplicates,
        confusions=find_confusions(evaluated),
    )


def different_labels_first(
    pairs: list[Pair], first: Predictions, second: Predictions
) -> list[Pair]:
    """The pairs, those whose labels contradict each other first."""
    labels, others = first.values["label"], second.values["label"]
    key: Callable[[Pair], tuple[bool, float]] = lambda pair: (  # noqa: E731
        bool(labels[pair.first] == others[pair.second]),
        pair.distance,
    )
    return sorted(pairs, key=key)


def find_confusions(predictions: Predictions) -> list[Confusion]:
    """All pairs of classes that are confused, the most frequent first."""
    labels, predicted = predictions.values["label"], predictions.values["predicted"]
    counts = labels.bincount(minlength=len(predictions.names)).tolist()
    by_pair: dict[tuple[int, int], list[int]] = {}
    wrong = predictions.wrong_rows
    for row, *pair in zip(
        wrong.tolist(), labels[wrong].tolist(), predicted[wrong].tolist(), strict=True
    ):
        by_pair.setdefault((pair[0], pair[1]), []).append(row)
    return [
        Confusion(
            label=predictions.names[label],
            predicted=predictions.names[other],
            num_images=len(rows),
            num_of_label=counts[label],
            rows=wrong.new_tensor(rows),
        )
        for (label, other), rows in sorted(by_pair.items(), key=lambda at: -len(at[1]))
    ]
