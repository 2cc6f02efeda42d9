"""The nearest images of an image, by the cosine similarity of their features."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from t2t.analysis.knn import nearest
from t2t.analysis.neighbors_figure import CaptionedImage, draw_neighbors
from t2t.data.decoding.headers import DEFAULT_MAX_PIXELS
from t2t.data.label_config import PathLike, label_config
from t2t.data.sources import Source
from t2t.errors import UserError, on_one_line
from t2t.models.trained import load_trained
from t2t.probing.features import (
    Features,
    check_finite,
    extract,
    pooled_features,
)
from t2t.probing.images import find_images, some_of
from t2t.serving.predictor import ImageLike, Predictor, name_of
from t2t.shapes import Pixels
from t2t.training.distributed import init_distributed
from t2t.training.evaluation.evaluate import autocast
from t2t.training.evaluation.evaluate_source import (
    EvaluateOptions,
    Progress,
    no_progress,
)
from t2t.training.runtime import PRECISIONS
from t2t.training.threads import use_free_cores

MAX_DRAWN = 8
"""Images in a picture, each with its nearest ones."""


@dataclass(frozen=True)
class Neighbor:
    """An image of the data that is near another."""

    name: str
    class_name: str
    """Empty if the images have no labels."""
    similarity: float
    """The cosine of the angle between the features, at most 1."""
    index: int
    """Which image of the source it is."""


@dataclass(frozen=True)
class Nearest:
    """An image and its nearest ones, nearest first."""

    image: str
    pixels: Pixels
    """The model's input before normalisation."""
    neighbors: tuple[Neighbor, ...]


@dataclass(frozen=True, kw_only=True)
class NeighborReport:
    """The nearest images of some images in some data."""

    found: tuple[Nearest, ...]
    weights: str
    model: str
    data: str
    split: str
    num_images: int
    """How many images were searched."""
    source: Source
    predictor: Predictor
    damaged: tuple[str, ...]
    notes: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """The report as JSON."""
        return {
            "weights": self.weights,
            "model": self.model,
            "data": self.data,
            "split": self.split,
            "num_images": self.num_images,
            "images": [
                {
                    "image": each.image,
                    "neighbors": [
                        {
                            "path": neighbor.name,
                            "class": neighbor.class_name or None,
                            "similarity": round(neighbor.similarity, 6),
                            "index": neighbor.index,
                        }
                        for neighbor in each.neighbors
                    ],
                }
                for each in self.found
            ],
            "damaged": list(self.damaged),
            "notes": list(self.notes),
        }

    def render(self) -> RenderableType:
        """The report as a table."""
        heading = Text.assemble(
            (self.weights, "bold cyan"),
            f"  {self.model}\n{self.data} ({self.split}): {self.num_images:,} images",
        )
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
        table.add_column("image", style="cyan", overflow="fold")
        table.add_column("similarity", justify="right", no_wrap=True)
        is_labelled = bool(self.source.classes)
        if is_labelled:
            table.add_column("class", overflow="fold")
        table.add_column("nearest", overflow="fold")
        for each in self.found:
            image = on_one_line(each.image)
            for neighbor in each.neighbors:
                labels = [Text(on_one_line(neighbor.class_name))] * is_labelled
                nearest_image = Text(on_one_line(neighbor.name))
                similarity = f"{neighbor.similarity:.3f}"
                table.add_row(Text(image), similarity, *labels, nearest_image)
                image = ""
        return Group(heading, Text(), table)

    def draw(self, path: str | Path) -> Path:
        """Draws the first images, each in a row with its nearest ones."""
        rows = [
            (
                CaptionedImage(each.pixels, Path(each.image).name, "query"),
                [self.captioned(neighbor) for neighbor in each.neighbors],
            )
            for each in self.found[:MAX_DRAWN]
        ]
        title = f"Nearest of {self.num_images:,} images of {self.data}, {self.model}"
        return draw_neighbors(rows, path, title)

    def captioned(self, neighbor: Neighbor) -> CaptionedImage:
        """A neighbor as the model sees it, with its class and similarity."""
        pixels = self.predictor.model_input(self.source.read(neighbor.index))
        title = neighbor.class_name or Path(neighbor.name).name
        return CaptionedImage(pixels, title, f"{neighbor.similarity:.3f}")


def neighbors(
    weights: str | os.PathLike[str],
    images: ImageLike | Sequence[ImageLike],
    data: str | os.PathLike[str] | None = None,
    *,
    labels: PathLike | Sequence[PathLike] = (),
    label_columns: str | None = None,
    label_pattern: str | None = None,
    top: int = 8,
    split: str | None = None,
    num_images: int | None = None,
    seed: int = 0,
    model: str | None = None,
    batch_size: int = 256,
    device: str | None = None,
    precision: str | None = None,
    max_pixels: int = DEFAULT_MAX_PIXELS,
    progress: Progress = no_progress,
) -> NeighborReport:
    """The nearest images of each image among those of a split, by default train.

    An image of the data is not its own neighbor.
    """
    if top < 1:
        raise UserError(f"top={top} is too small: give 1 or more.")
    options = EvaluateOptions(
        batch_size=batch_size,
        device=device,
        precision=precision,
        max_pixels=max_pixels,
    )
    several = images if isinstance(images, list | tuple) else [images]
    trained = load_trained(weights, model=model, needs_head=False)
    config = label_config(labels, label_columns, label_pattern)
    selected = find_images(trained, data, split, preferred="train", label_config=config)
    selected = replace(selected, source=some_of(selected.source, num_images, seed))
    with init_distributed(device) as world, use_free_cores(world.device):
        predictor = Predictor(trained, world.device, max_pixels)
        # Before the search, which takes longer: an image may be damaged.
        pixels = [predictor.model_input(image) for image in several]
        kind = PRECISIONS[options.precision_on(world.device)]
        with torch.inference_mode(), autocast(world.device, kind):
            queries = [
                pooled_features(predictor.model, predictor.normalised(each))
                for each in pixels
            ]
        features = extract(trained, selected, world, options, progress)
        values = torch.cat(queries).float()
        check_finite(values, trained)
        # One more, since an image may find itself.
        near = nearest(values, features.values.to(world.device), top + 1)
    names = [name_of(image, number) for number, image in enumerate(several)]
    rows = zip(names, pixels, *(each.cpu() for each in near), strict=True)
    return NeighborReport(
        found=tuple(
            Nearest(name, seen, named(features, name, *row)[:top])
            for name, seen, *row in rows
        ),
        weights=str(weights),
        model=trained.name,
        data=selected.where,
        split=selected.split,
        num_images=len(features),
        source=selected.source,
        predictor=predictor,
        damaged=features.damaged,
        notes=features.notes,
    )


def named(
    features: Features,
    image: str,
    similarities: torch.Tensor,
    rows: torch.Tensor,
) -> tuple[Neighbor, ...]:
    """The images in these rows of the features, except the image itself."""
    found = []
    for similarity, row in zip(similarities.tolist(), rows.tolist(), strict=True):
        name = features.names[row]
        if os.path.realpath(name) == os.path.realpath(os.path.expanduser(image)):
            continue
        label = int(features.labels[row])
        class_name = features.classes[label] if features.classes else ""
        index = int(features.indices[row])
        found.append(Neighbor(name, class_name, similarity, index))
    return tuple(found)
