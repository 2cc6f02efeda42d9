"""Step times that `t2t bench` measured, by the number of images per GPU."""

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from t2t.errors import UserError
from t2t.training.distributed import Parallelism
from t2t.training.recipe import Recipe

Row = dict[str, Any]

FLOOR_SECONDS = 0.003
"""Time of a step on almost no images: 2.9 ms for T2T-ViT-14 and 2.3 ms for DeiT-S, by
extrapolating batches of 32 and 64 on an H200 (records/speed/growth-h200.json)."""
GRAPHS = ("graph", "eager_graph")
"""Launches whose step is a CUDA graph."""
USUAL = {
    "mode": "train",
    "source": "synthetic",
    "path": "single",
    "image_size": 224,
    "depth": None,
}
"""Values of fields that a row leaves out."""


@dataclass(frozen=True)
class MeasuredSteps:
    """Times of steps on several batch sizes, as one process takes them."""

    file: str
    path: str
    """`single`, or the parallelism of a process group of one."""
    batches: tuple[int, ...]
    """Ascending."""
    seconds: tuple[float, ...]
    """The device's time, by batch."""
    host: tuple[float | None, ...]
    """The host's time to launch a step, by batch; None if it is unknown."""
    is_trainer: bool
    """Whether the step is the trainer's, with augmentation."""
    is_whole_run: bool
    """Whether the times are means over the phases of the run."""

    def device_seconds(self, batch: int) -> float:
        """The device's time for a batch, interpolated.

        Beyond the largest batch its rate is used, below the smallest the line through
        the two smallest.
        """
        batches, seconds = self.batches, self.seconds
        if batch >= batches[-1]:
            return seconds[-1] * batch / batches[-1]
        if batch >= batches[0]:
            return float(np.interp(batch, batches, seconds))
        floor = min(FLOOR_SECONDS, seconds[0])
        if len(batches) > 1:
            slope = (seconds[1] - seconds[0]) / (batches[1] - batches[0])
            floor = min(max(seconds[0] - slope * batches[0], 0.0), seconds[0])
        return floor + (seconds[0] - floor) * batch / batches[0]

    def host_seconds(self, batch: int) -> float | None:
        """The host's time for a batch, interpolated; None if it was not measured."""
        found = dict(zip(self.batches, self.host, strict=True))
        known = {each: value for each, value in found.items() if value is not None}
        if not known:
            return None
        return float(np.interp(batch, [*known], [*known.values()]))

    def words(self, batch: int) -> str:
        """Where the figures come from."""
        sizes = [f"{each:,}" for each in self.batches]
        span = sizes[0] if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
        is_inside = self.batches[0] <= batch <= self.batches[-1]
        parts = [
            self.file,
            "one process" if self.path == "single" else f"{self.path} group of one",
            f"batch {span}" if is_inside else f"extrapolated from batch {span}",
        ]
        return ", ".join(parts + ["without augmentation"] * (not self.is_trainer))


def measured_steps(
    path: Path, recipe: Recipe, gpu: str, parallelism: Parallelism, num_gpus: int
) -> MeasuredSteps:
    """A file's rows for a recipe's model on a GPU: of that parallelism if it has any.

    If it has none, those of a process without others, whose step is a CUDA graph too.
    """
    rows = [row for row in read_rows(path) if fits(row, recipe, gpu)]
    paths = ["single"]
    if num_gpus > 1:
        also = ["fsdp"] if parallelism == "hybrid" else []
        paths = [parallelism, *also, "single"]
    for name in paths:
        found = [row for row in rows if value_of(row, "path") == name]
        if found:
            return steps_of(path, name, found, recipe)
    height, width = recipe.image_size
    size = str(height) if height == width else f"{height}×{width}"
    raise UserError(
        f"{path} has no training steps of {recipe.model} at {size} px on {gpu}; "
        f"measure some with `t2t bench {recipe.model}`, or leave --measured out."
    )


def read_rows(path: Path) -> list[Row]:
    """The rows of a file of `t2t bench`: a JSON list, or one row per line."""
    advice = "give a file that `t2t bench --out` wrote"
    try:
        text = path.read_text()
        is_list = text.lstrip().startswith("[")
        lines = [line for line in text.splitlines() if line.strip()]
        rows = json.loads(text) if is_list else [json.loads(line) for line in lines]
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not JSON"
        raise UserError(
            f"--measured {path} cannot be read ({reason}); {advice}."
        ) from error
    if not rows or not all(isinstance(row, dict) and "model" in row for row in rows):
        raise UserError(f"--measured {path} holds no rows of models; {advice}.")
    return list(rows)


def fits(row: Row, recipe: Recipe, gpu: str) -> bool:
    """Whether a row has the step time of a recipe's model on a GPU."""
    size = value_of(row, "image_size")
    sides = (size, size) if isinstance(size, int) else tuple(size)
    is_own = row.get("recipe") == recipe.name
    return (
        row["model"] == recipe.model
        and gpu in str(row.get("gpu"))
        and sides == tuple(recipe.image_size)
        and value_of(row, "mode") == "train"
        and value_of(row, "source") == "synthetic"
        and value_of(row, "depth") is None
        and row.get("precision") != "fp32"
        and is_positive(row.get("batch"))
        and is_positive(row.get("images_per_second"))
        and row.get("launch") in GRAPHS
        # Other settings of the model, or phases, are those of one recipe.
        and (is_own or not (recipe.model_args or "phases" in row))
    )


def value_of(row: Row, key: str) -> Any:
    """A value of a row, or the usual one."""
    return row.get(key, USUAL[key])


def is_positive(value: object) -> bool:
    """Whether a value is a number above zero."""
    return isinstance(value, int | float) and 0 < value < math.inf


def steps_of(
    path: Path, name: str, rows: Iterable[Row], recipe: Recipe
) -> MeasuredSteps:
    """The best row of each batch size: of the trainer if there are any."""
    rows = list(rows)
    whole = [row for row in rows if "phases" in row]
    trained = [row for row in rows if row.get("recipe") or "host_ms" in row]
    kept = whole or trained or rows
    best: dict[int, Row] = {}
    for row in sorted(kept, key=lambda row: row["images_per_second"]):
        best[row["batch"]] = row
    chosen = [best[batch] for batch in sorted(best)]
    return MeasuredSteps(
        file=str(path),
        path=name,
        batches=tuple(row["batch"] for row in chosen),
        seconds=tuple(device_seconds(row) for row in chosen),
        host=tuple(
            row["host_ms"] / 1e3 if is_positive(row.get("host_ms")) else None
            for row in chosen
        ),
        is_trainer=bool(whole or trained),
        is_whole_run=bool(whole),
    )


def device_seconds(row: Row) -> float:
    """The device's time of a step: all of it, as a replayed graph keeps it busy."""
    return float(row["batch"] / row["images_per_second"])
