"""The report of an evaluation: tables, and JSON."""

from dataclasses import asdict, dataclass
from typing import Any

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from t2t.errors import on_one_line
from t2t.training.evaluation.calibration import NUM_BINS, Calibration
from t2t.training.evaluation.measured import (
    NUM_SHOWN,
    Measured,
    figures_table,
    report_of,
)
from t2t.training.evaluation.real_labels import RealScore
from t2t.training.evaluation.score import Score


@dataclass(frozen=True, kw_only=True)
class EvalReport(Measured):
    """A model's score on a data set, and how it was measured."""

    score: Score
    real: RealScore | None
    flip: bool
    """Whether probabilities are averaged over images and their mirror images."""

    def classes(self) -> list["ClassRow"]:
        """Every class that has images, the worst first."""
        names, confusion = self.trained.readable_names, self.score.confusion
        pairs, amounts = confusion.indices().T.tolist(), confusion.values().tolist()
        counts: dict[int, dict[int, int]] = {}
        for (number, guess), amount in zip(pairs, amounts, strict=True):
            counts.setdefault(number, {})[guess] = amount
        rows = []
        for number, guesses in counts.items():
            num_images, num_correct = sum(guesses.values()), guesses.pop(number, 0)
            order = sorted(guesses, key=lambda guess: -guesses[guess])
            confused_with = [(names[guess], guesses[guess]) for guess in order]
            own = self.trained.class_names[number]
            rows.append(
                ClassRow(own, names[number], num_images, num_correct, confused_with)
            )
        return sorted(rows, key=lambda row: row.top1)

    def as_json(self) -> dict[str, Any]:
        """The report as JSON."""
        score, real = self.score, self.real
        return {
            **self.data_as_json(score.num_images),
            "top1": round(score.top1, 4),
            "top5": round(score.top5, 4),
            "macro_accuracy": round(score.macro_accuracy, 4),
            "loss": round(score.loss, 6),
            "flip": self.flip,
            "calibration": calibration_json(score.calibration),
            "real_top1": None if real is None else round(real.top1, 4),
            "real_num_images": None if real is None else real.num_images,
            **self.measurement_as_json(),
            "classes": [
                {
                    "class": row.class_name,
                    "name": row.name,
                    "num_images": row.num_images,
                    "top1": round(row.top1, 4),
                    "confused_with": [
                        {"name": name, "num_images": num}
                        for name, num in row.confused_with
                    ],
                }
                for row in self.classes()
            ],
        }

    def render(self) -> RenderableType:
        """The report as tables, with the worst classes."""
        rows = self.classes()
        classes = class_table(rows[:NUM_SHOWN])
        counts = f"{self.score.num_images:,} images of {len(rows)} classes"
        if self.flip:
            counts += " and their mirror images"
        return report_of(self.heading(counts), self.figures(), classes, len(rows))

    def figures(self) -> Table:
        """The score in a few numbers."""
        table = figures_table()
        score, real = self.score, self.real
        table.add_row("top-1", Text(f"{score.top1:.2f} %", style="bold"), "")
        if len(self.trained.class_names) > 5:
            table.add_row("top-5", f"{score.top5:.2f} %", "")
        if real is not None:
            note = f"reassessed labels, {real.num_images:,} images"
            table.add_row("ReaL", f"{real.top1:.2f} %", note)
        note = "mean of the classes' top-1"
        table.add_row("macro", f"{score.macro_accuracy:.2f} %", note)
        table.add_row("loss", f"{score.loss:.4f}", "")
        for row in calibration_rows(score.calibration):
            table.add_row(*row)
        self.add_speed(table)
        return table


def calibration_rows(found: Calibration) -> list[tuple[str, str, str]]:
    """Rows of a table: the calibration error, before and after temperature scaling."""
    note = f"calibration error, {NUM_BINS} bins"
    rows = [("ECE", f"{found.ece:.2f} %", note)]
    temperature, held = found.temperature, found.held_out
    if temperature is not None:
        note = "has the smallest loss on these images"
        rows.append(("temperature", f"{temperature:.2f}", note))
    if held is not None:
        effect = (
            f"on half: ECE {held.ece_before:.2f} → {held.ece:.2f} %, loss "
            f"{held.loss_before:.4f} → {held.loss:.4f}"
        )
        note = f"{effect}; fitted on the other half"
        rows.append(("", f"{held.temperature:.2f}", note))
    return rows


def calibration_json(found: Calibration) -> dict[str, Any]:
    """The calibration as JSON."""
    held, temperature = found.held_out, found.temperature
    return {
        "ece": round(found.ece, 4),
        "num_bins": NUM_BINS,
        "temperature": None if temperature is None else round(temperature, 4),
        "held_out": None
        if held is None
        else {name: round(value, 4) for name, value in asdict(held).items()},
    }


@dataclass(frozen=True)
class ClassRow:
    """The score of one class."""

    class_name: str
    name: str
    num_images: int
    num_correct: int
    confused_with: list[tuple[str, int]]
    """Wrongly predicted classes and how often, most frequent first."""

    @property
    def top1(self) -> float:
        """Accuracy in per cent."""
        return 100 * self.num_correct / self.num_images


def class_table(rows: list[ClassRow]) -> Table:
    """A table of classes: images, correct predictions, and the most frequent errors."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("class", style="cyan", overflow="fold")
    for heading in ("images", "correct", "top-1"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("most often confused with", overflow="fold")
    for row in rows:
        confused_with = ", ".join(
            f"{name.partition(',')[0]} ({num})" for name, num in row.confused_with[:3]
        )
        table.add_row(
            Text(on_one_line(row.name)),
            f"{row.num_images:,}",
            f"{row.num_correct:,}",
            f"{row.top1:.1f} %",
            Text(on_one_line(confused_with)),
        )
    return table
