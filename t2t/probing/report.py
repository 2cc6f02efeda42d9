"""The report of a probe: a table, and JSON."""

from dataclasses import dataclass, field
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text


@dataclass(frozen=True, kw_only=True)
class ProbeResult:
    """The score of one method, and how it was set."""

    method: str
    """linear, knn, few-shot or finetune."""
    label: str
    """The method in words."""
    top1: float
    """Per cent; of several draws, the mean."""
    std: float | None = None
    """The standard deviation over the draws."""
    num_images: int
    """Labelled images that it learned from."""
    setting: str = ""
    """What was chosen or drawn, in words."""
    details: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """The result as JSON."""
        return {
            "method": self.method,
            "top1": round(self.top1, 4),
            "top1_std": None if self.std is None else round(self.std, 4),
            "num_train_images": self.num_images,
            **self.details,
            "seconds": round(self.seconds, 2),
        }

    @property
    def accuracy(self) -> str:
        """The top-1, with its spread over the draws."""
        spread = "" if self.std is None else f" ± {self.std:.2f}"
        return f"{self.top1:.2f}{spread} %"


@dataclass(frozen=True, kw_only=True)
class ProbeReport:
    """The scores of the features of a model on some data."""

    weights: str
    model: str
    data: str
    split: str
    """The split it is evaluated on."""
    num_classes: int
    num_train: int
    num_evaluated: int
    width: int
    """Numbers in a feature."""
    image_size: tuple[int, int]
    crop_fraction: float
    seed: int
    command: str
    device: str
    precision: str
    results: tuple[ProbeResult, ...]
    seconds: float
    """The time to extract the features."""
    damaged: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def result(self, method: str) -> ProbeResult:
        """The first result of a method."""
        return next(each for each in self.results if each.method == method)

    def as_json(self) -> dict[str, Any]:
        """The report as JSON, which is also `probe.json`."""
        return {
            "command": self.command,
            "weights": self.weights,
            "model": self.model,
            "data": self.data,
            "split": self.split,
            "seed": self.seed,
            "num_classes": self.num_classes,
            "num_train_images": self.num_train,
            "num_images": self.num_evaluated,
            "width": self.width,
            "image_size": list(self.image_size),
            "crop_fraction": self.crop_fraction,
            "device": self.device,
            "precision": self.precision,
            "extract_seconds": round(self.seconds, 2),
            "results": [each.as_json() for each in self.results],
            "damaged": list(self.damaged),
            "notes": list(self.notes),
        }

    def render(self) -> RenderableType:
        """The report as a table."""
        size = "×".join(map(str, self.image_size))
        heading = Text.assemble(
            (self.weights, "bold cyan"),
            f"  {self.model}, features of width {self.width} at {size} pixels\n",
            f"{self.data}: {self.num_train:,} training images of {self.num_classes} "
            f"classes, evaluated on {self.num_evaluated:,} ({self.split})",
        )
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
        table.add_column("method", style="cyan", no_wrap=True)
        table.add_column("labels", justify="right", no_wrap=True)
        table.add_column("top-1", justify="right", no_wrap=True)
        table.add_column("setting", style="dim", overflow="fold")
        for each in self.results:
            accuracy = Text(each.accuracy, style="bold")
            table.add_row(each.label, f"{each.num_images:,}", accuracy, each.setting)
        return Group(heading, Text(), table)
