"""The report of a multi-label evaluation: tables, and JSON."""

import math
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from t2t.errors import on_one_line
from t2t.tasks.multilabel_scores import THRESHOLD, MultilabelScores
from t2t.training.evaluation.measured import (
    NUM_SHOWN,
    Measured,
    figures_table,
    report_of,
)


@dataclass(frozen=True, kw_only=True)
class MultilabelReport(Measured):
    """A multi-label model's scores on a data set, and how they were measured."""

    scores: MultilabelScores

    @property
    def num_images(self) -> int:
        """How many images were evaluated."""
        return len(self.values["index"])

    @property
    def loss(self) -> float:
        """The mean binary cross-entropy."""
        return self.values["val_loss"].double().mean().item()

    def as_json(self) -> dict[str, Any]:
        """The report as JSON."""
        return {
            **self.data_as_json(self.num_images),
            "multilabel": True,
            "map": finite(self.scores.mean_average_precision),
            "f1": finite(self.scores.overall_f1),
            "threshold": THRESHOLD,
            "loss": round(self.loss, 6),
            **self.measurement_as_json(),
            "classes": [
                {
                    "class": row.class_name,
                    "name": row.name,
                    "num_images": row.num_images,
                    "average_precision": finite(row.average_precision),
                    "f1": finite(row.f1),
                    "num_predicted": row.num_predicted,
                    "num_correct": row.num_correct,
                }
                for row in self.classes()
            ],
        }

    def classes(self) -> list["MultilabelRow"]:
        """Every class, those with the worst average precision first.

        Classes without images come last.
        """
        scores, trained = self.scores, self.trained
        rows = [
            MultilabelRow(name, readable, *numbers)
            for name, readable, *numbers in zip(
                trained.class_names,
                trained.readable_names,
                scores.num_true.tolist(),
                scores.num_predicted.tolist(),
                scores.num_correct.tolist(),
                scores.average_precision.tolist(),
                scores.f1.tolist(),
                strict=True,
            )
        ]
        return sorted(rows, key=lambda row: (row.num_images == 0, row.sort_key))

    def render(self) -> RenderableType:
        """The report as tables, with the worst classes."""
        rows = self.classes()
        classes = class_table(rows[:NUM_SHOWN])
        present = self.scores.num_true > 0
        counts = (
            f"{self.num_images:,} images with {int(self.scores.num_true.sum()):,} "
            f"labels of {int(present.sum())} classes"
        )
        return report_of(self.heading(counts), self.figures(), classes, len(rows))

    def figures(self) -> Table:
        """The scores in a few numbers."""
        table = figures_table()
        scores = self.scores
        value = percent(scores.mean_average_precision, 2)
        table.add_row("mAP", Text(value, style="bold"), "mean over the classes")
        f1 = percent(scores.overall_f1, 2)
        table.add_row("F1", f1, f"of all labels, at a probability of {THRESHOLD}")
        table.add_row("loss", f"{self.loss:.4f}", "")
        self.add_speed(table)
        return table


@dataclass(frozen=True)
class MultilabelRow:
    """The scores of one class."""

    class_name: str
    name: str
    num_images: int
    """Images that have the class."""
    num_predicted: int
    num_correct: int
    average_precision: float
    f1: float

    @property
    def sort_key(self) -> float:
        """The average precision; NaN sorts first."""
        value = self.average_precision
        return value if math.isfinite(value) else -1.0


def class_table(rows: list[MultilabelRow]) -> Table:
    """A table of classes: images, predictions, average precision and F1."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("class", style="cyan", overflow="fold")
    for heading in ("images", "predicted", "correct", "AP", "F1"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            Text(on_one_line(row.name)),
            f"{row.num_images:,}",
            f"{row.num_predicted:,}",
            f"{row.num_correct:,}",
            percent(row.average_precision),
            percent(row.f1),
        )
    return table


def percent(value: float, digits: int = 1) -> str:
    """A percentage; a dash if it is not defined."""
    return f"{value:.{digits}f} %" if math.isfinite(value) else "–"


def finite(value: float) -> float | None:
    """The value for JSON, which has no NaN."""
    return round(value, 4) if math.isfinite(value) else None
