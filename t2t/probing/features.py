"""Features: what the head of a model reads, for every image."""

import csv
import io
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int64
from torch import Tensor, nn

from t2t.atomic import atomic_file
from t2t.data.decoding.headers import DEFAULT_MAX_PIXELS
from t2t.data.label_config import PathLike, label_config
from t2t.data.sources import Source
from t2t.errors import UserError, first_line
from t2t.models.class_names import readable_names
from t2t.models.trained import TrainedModel, load_trained
from t2t.models.vit import VisionTransformer
from t2t.probing.images import ImagesOfSplit, find_images, some_of
from t2t.shapes import Images, Labels
from t2t.table_beside import OF_FEATURES, table_beside
from t2t.training.distributed import World, init_distributed
from t2t.training.evaluation.evaluate_source import (
    EvaluateOptions,
    Progress,
    evaluate_source,
    no_progress,
)
from t2t.training.threads import use_free_cores


@dataclass(frozen=True, kw_only=True)
class Features:
    """The features of images, with names and labels."""

    values: Float[Tensor, "images width"]
    labels: Int64[Tensor, " images"]
    """Class numbers; all zero if the images have no labels."""
    names: tuple[str, ...]
    """Files, or what else names an image in its source."""
    classes: tuple[str, ...]
    """Empty if the images have no labels."""
    model: str
    data: str
    split: str
    indices: Int64[Tensor, " images"]
    """Which image of the source each one is: damaged ones are missing."""
    damaged: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.values)

    @property
    def readable_classes(self) -> tuple[str, ...]:
        """Class names in words."""
        return readable_names(self.classes)


def features(
    weights: str | os.PathLike[str],
    data: str | os.PathLike[str] | None = None,
    *,
    labels: PathLike | Sequence[PathLike] = (),
    label_columns: str | None = None,
    label_pattern: str | None = None,
    split: str | None = None,
    num_images: int | None = None,
    seed: int = 0,
    model: str | None = None,
    batch_size: int = 256,
    device: str | None = None,
    precision: str | None = None,
    max_pixels: int = DEFAULT_MAX_PIXELS,
    progress: Progress = no_progress,
) -> Features:
    """The features of every image of a split.

    `weights` and `data` are named as for `t2t features`. A feature is what the head of
    the model reads: its class token, or the mean of its tokens, after the last norm.
    """
    options = EvaluateOptions(
        batch_size=batch_size,
        device=device,
        precision=precision,
        max_pixels=max_pixels,
    )
    trained = load_trained(weights, model=model, needs_head=False)
    config = label_config(labels, label_columns, label_pattern)
    images = find_images(trained, data, split, label_config=config)
    images = replace(images, source=some_of(images.source, num_images, seed))
    with init_distributed(options.device) as world, use_free_cores(world.device):
        return extract(trained, images, world, options, progress)


def extract(
    trained: TrainedModel,
    images: ImagesOfSplit,
    world: World,
    options: EvaluateOptions,
    progress: Progress,
) -> Features:
    """The features of every image, in one pass, on the CPU."""
    source = images.source
    evaluated = evaluate_source(
        trained, source, score_features, world, options, progress
    )
    found = evaluated.values
    check_finite(found["features"], trained)
    return Features(
        values=found["features"],
        labels=found["label"],
        names=tuple(source.name(index) for index in found["index"].tolist()),
        classes=label_names(source),
        model=trained.name,
        data=images.where,
        split=images.split,
        indices=found["index"],
        damaged=evaluated.damaged,
        notes=(*trained.notes, *source.notes),
    )


def label_names(source: Source) -> tuple[str, ...]:
    """The name of each label: a class, or the classes of a set as cat;outdoor."""
    if source.label_sets is None:
        return source.classes
    return tuple(
        ";".join(source.classes[number] for number in each if number >= 0)
        for each in source.label_sets.tolist()
    )


def score_features(
    model: nn.Module, images: Images, labels: Labels
) -> dict[str, Tensor]:
    """The feature of each image, as a value of an evaluation."""
    return {"features": pooled_features(model, images)}


def pooled_features(model: Any, images: Images) -> Float[Tensor, "batch width"]:
    """The input of a model's head, in float32: ours, or a timm model's."""
    if not hasattr(model, "forward_features"):
        raise UserError(
            f"{type(model).__name__} has no forward_features, which features come "
            "from; use one of our models or timm's."
        )
    pooled: Tensor = model.forward_head(model.forward_features(images), pre_logits=True)
    if isinstance(model, VisionTransformer) and model.config.pool == "none":
        pooled = pooled[:, model.config.num_prefix_tokens :].mean(1)
    if pooled.ndim != 2:
        raise UserError(
            f"{type(model).__name__} pools its tokens to the shape "
            f"{tuple(pooled.shape)}, not to one feature per image; use another model."
        )
    return pooled.float()


def check_finite(values: Tensor, trained: TrainedModel) -> None:
    """Raises an error for features that are NaN or infinite."""
    if not values.isfinite().all():
        raise UserError(
            f"{trained.path} outputs NaN or infinity: its weights are damaged; name "
            "others."
        )


def save_features(found: Features, path: str | os.PathLike[str]) -> tuple[Path, Path]:
    """Writes an .npy of float32, and a .csv with path, label and class of each row."""
    file = Path(path).expanduser()
    table = table_beside(file, OF_FEATURES)
    text = io.StringIO(newline="")
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(OF_FEATURES)
    for name, label in zip(found.names, found.labels.tolist(), strict=True):
        known = (label, found.classes[label]) if found.classes else ("", "")
        rows.writerow([name, *known])
    try:
        # Neither replaces an earlier one if the other cannot be written.
        with atomic_file(file) as part, atomic_file(table) as beside:
            with part.open("wb") as out:
                np.save(out, found.values.numpy())
            # File names may be any bytes; programs get them unchanged.
            beside.write_bytes(text.getvalue().encode(errors="surrogateescape"))
    except OSError as error:
        raise UserError(
            f"{file} could not be written ({first_line(error)})."
        ) from error
    return file, table
