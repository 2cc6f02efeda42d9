"""What the reports of all evaluations share: what was measured, where and how fast."""

from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from torch import Tensor

from t2t.data.sources import Source
from t2t.models.trained import TrainedModel

NUM_SHOWN = 20
"""Classes in the printed table, the worst first."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """An evaluation of a model: its images, its values and how they were measured."""

    trained: TrainedModel
    data: str
    split: str
    source: Source
    """The images, with the class numbers of the model."""
    values: dict[str, Tensor]
    """What was measured of every image, by name, such as its index and its loss."""
    images_per_second: float | None
    """Measured from the second batch on; None if there is only one."""
    device: str
    precision: str
    batch_size: int
    damaged: tuple[str, ...]
    notes: tuple[str, ...]

    def data_as_json(self, num_images: int) -> dict[str, Any]:
        """The model and the data as JSON."""
        return {
            "weights": self.trained.path,
            "model": self.trained.name,
            "data": self.data,
            "split": self.split,
            "num_images": num_images,
        }

    def measurement_as_json(self) -> dict[str, Any]:
        """Speed, device and preprocessing as JSON."""
        rate = self.images_per_second
        return {
            "images_per_second": None if rate is None else round(rate, 1),
            "device": self.device,
            "precision": self.precision,
            "batch_size": self.batch_size,
            "image_size": list(self.trained.image_size),
            "crop_fraction": self.trained.crop_fraction,
            "damaged": list(self.damaged),
            "notes": list(self.notes),
        }

    def heading(self, counts: str) -> Text:
        """The model and the data, given its counts of images and classes."""
        size = "×".join(map(str, self.trained.image_size))
        return Text.assemble(
            (self.trained.path, "bold cyan"),
            f"  {self.trained.name}\n",
            f"{self.data} ({self.split}): {counts}, at {size} pixels",
        )

    def add_speed(self, figures: Table) -> None:
        """Adds the row of the speed to a table of figures."""
        rate = self.images_per_second
        how = f"images/s, {self.device}, {self.precision}, batches of {self.batch_size}"
        if rate is None:
            figures.add_row("speed", "–", f"{how}: too few to time")
        else:
            figures.add_row("speed", f"{rate:,.0f}", how)


def figures_table() -> Table:
    """An empty table of names, numbers and notes."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim")
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim")
    return table


def report_of(
    heading: Text, figures: Table, classes: Table, num_classes: int
) -> RenderableType:
    """A printed report, given the table of the worst classes."""
    parts: list[RenderableType] = [heading, Text(), figures, Text(), classes]
    if num_classes > NUM_SHOWN:
        note = f"The {NUM_SHOWN} worst of {num_classes} classes; --json gives all."
        parts += [Text(), Text(note, style="dim")]
    return Group(*parts)
