"""The report of an evaluation with several labels an image: tables, and JSON."""

import math
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from torch import Tensor

from t2t.data.sources import Source
from t2t.errors import on_one_line
from t2t.models.trained import TrainedModel
from t2t.tasks.multilabel_scores import THRESHOLD, MultilabelScores
from t2t.training.evaluation.report import NUM_SHOWN


@dataclass(frozen=True, kw_only=True)
class MultilabelReport:
    """A multi-label model's scores on a data set, and how they were measured."""

    trained: TrainedModel
    data: str
    split: str
    source: Source
    """The images, with the classes of the model."""
    scores: MultilabelScores
    values: dict[str, Tensor]
    """Of each image: index, label, val_loss and the probabilities of all classes."""
    images_per_second: float | None
    """From the second batch on; None if there is only one."""
    device: str
    precision: str
    batch_size: int
    damaged: tuple[str, ...]
    notes: tuple[str, ...]

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
        trained, rate = self.trained, self.images_per_second
        return {
            "weights": trained.path,
            "model": trained.name,
            "data": self.data,
            "split": self.split,
            "num_images": self.num_images,
            "multilabel": True,
            "map": finite(self.scores.mean_average_precision),
            "f1": finite(self.scores.overall_f1),
            "threshold": THRESHOLD,
            "loss": round(self.loss, 6),
            "images_per_second": None if rate is None else round(rate, 1),
            "device": self.device,
            "precision": self.precision,
            "batch_size": self.batch_size,
            "image_size": list(trained.image_size),
            "crop_fraction": trained.crop_fraction,
            "damaged": list(self.damaged),
            "notes": list(self.notes),
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

        Classes that no image has come last.
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
        shown = rows[:NUM_SHOWN]
        parts: list[RenderableType] = [self.heading(), Text(), self.figures(), Text()]
        parts.append(class_table(shown))
        if len(rows) > len(shown):
            note = f"The {len(shown)} worst of {len(rows)} classes; --json gives all."
            parts += [Text(), Text(note, style="dim")]
        return Group(*parts)

    def heading(self) -> Text:
        """The model and the data."""
        trained = self.trained
        size = "×".join(map(str, trained.image_size))
        return Text.assemble(
            (trained.path, "bold cyan"),
            f"  {trained.name}\n",
            f"{self.data} ({self.split}): {self.num_images:,} images with "
            f"{int(self.scores.num_true.sum()):,} labels of "
            f"{int((self.scores.num_true > 0).sum())} classes, at {size} pixels",
        )

    def figures(self) -> Table:
        """The scores in a few numbers."""
        table = Table(box=None, show_header=False, pad_edge=False)
        table.add_column(style="dim")
        table.add_column(justify="right", no_wrap=True)
        table.add_column(style="dim")
        scores, rate = self.scores, self.images_per_second
        value = percent(scores.mean_average_precision, 2)
        table.add_row("mAP", Text(value, style="bold"), "mean over the classes")
        f1 = percent(scores.overall_f1, 2)
        table.add_row("F1", f1, f"of all labels, at a probability of {THRESHOLD}")
        table.add_row("loss", f"{self.loss:.4f}", "")
        how = f"images/s, {self.device}, {self.precision}, batches of {self.batch_size}"
        speed = "–" if rate is None else f"{rate:,.0f}"
        how = how if rate is not None else f"{how}: too few to time"
        table.add_row("speed", speed, how)
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
        """The average precision; what is not finite comes first."""
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
    """A share in per cent; a dash if it is not defined."""
    return f"{value:.{digits}f} %" if math.isfinite(value) else "–"


def finite(value: float) -> float | None:
    """The value for JSON, which has no NaN."""
    return round(value, 4) if math.isfinite(value) else None
