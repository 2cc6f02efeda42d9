"""The real images that exported files are checked and evaluated on."""

import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from t2t.data.sources import Source, Subset
from t2t.data.sources.splitting import held_out_indices
from t2t.errors import UserError
from t2t.models.config import Size
from t2t.models.trained import TrainedModel
from t2t.serving.inputs import readable_images
from t2t.serving.predictor import ImageLike, Predictor
from t2t.tasks.class_matching import match_classes, relabelled
from t2t.training.evaluation.evaluate_model import check_one_label
from t2t.training.evaluation.evaluation_data import find_data

MAX_IMAGES = 16
"""Images that parity is checked on."""


@dataclass(frozen=True)
class CheckImages:
    """Uint8 images as the model sees them, and where they come from."""

    batches: tuple[Tensor, ...]
    """One for each image size."""
    origin: str


@dataclass(frozen=True)
class LabelledImages:
    """Images whose classes are the model's, to measure accuracy on."""

    source: Source
    where: str
    """Which images these are, in words."""


def find_check_images(
    trained: TrainedModel,
    images: Sequence[ImageLike],
    labelled: LabelledImages | None,
    other_size: Size | None,
) -> CheckImages:
    """The user's images, or some of the validation images.

    With `other_size`, the graph takes any size, and the same images follow at that one.
    """
    if images:
        chosen, origin = list(images), named_images(images)
    elif labelled is not None:
        source = labelled.source
        num = min(MAX_IMAGES, len(source))
        at = np.linspace(0, len(source) - 1, num).round().astype(int)
        chosen = [source.read(int(index)) for index in at]
        origin = f"{num} of {labelled.where}"
    else:
        raise UserError(
            "An exported file is checked against PyTorch on real images, and the "
            f"validation images of {trained.path} are not here: name an image or more, "
            "as in `t2t export WEIGHTS cat.jpg --to onnx`, or give --data."
        )
    sizes = [trained.image_size, *([other_size] if other_size else [])]
    batches = [cropped(replace(trained, image_size=size), chosen) for size in sizes]
    if other_size:
        origin += f", at {' and '.join(f'{h}×{w}' for h, w in sizes)} pixels"
    return CheckImages(tuple(batches), origin)


def cropped(trained: TrainedModel, images: Sequence[ImageLike]) -> Tensor:
    """Images as uint8 pixels, cropped as in evaluation."""
    predictor = Predictor(trained, "cpu")
    return torch.cat([predictor.model_input(image) for image in images])


def named_images(images: Sequence[ImageLike]) -> str:
    """A few images by their names, many by their number."""
    names = [Path(str(image)).name for image in images if isinstance(image, str | Path)]
    if len(names) == len(images) <= 2:
        return " and ".join(names)
    return f"{len(images)} images"


def images_in(words: Sequence[str]) -> list[str]:
    """The image files that words name: files, and folders of them."""
    found = list(readable_images(words, io.StringIO()))
    return found[:: max(1, len(found) // MAX_IMAGES)][:MAX_IMAGES]


def find_labelled(
    trained: TrainedModel, data: str | None, num_images: int
) -> LabelledImages | None:
    """Validation images of the model's classes; None if its own are not here."""
    try:
        found = find_data(trained, data, None)
    except UserError:
        if data is not None:
            raise
        return None
    source = found.source
    if not trained.is_multilabel:
        check_one_label(trained, found)
        numbers, _ = match_classes(source.classes, trained.class_names, found.where)
        source = relabelled(source, numbers, trained.class_names)
    if num_images < len(source):
        drawn = held_out_indices(source.labels, num_images, 0, minimum=1)
        source = Subset(source, drawn)
    part = {"val": "validation ", "all": ""}.get(found.split, f"{found.split} ")
    name = Path(found.where).name or found.where
    return LabelledImages(source, f"{len(source):,} {part}images of {name}")
