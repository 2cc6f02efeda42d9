"""ReaL: the reassessed labels (2020) of ImageNet's validation images."""

import re
from dataclasses import dataclass
from functools import cache

from jaxtyping import Int64
from torch import Tensor

from t2t.data.sources import Source
from t2t.errors import UserError
from t2t.models.class_names import imagenet_classes
from t2t.tasks.class_matching import match_classes

NUM_VALIDATION = 50_000


@cache
def real_labels() -> list[list[int]]:
    """The correct classes of each ImageNet validation image: one, several or none."""
    from timm.data import RealLabelsImagenet  # slow to import, and rarely needed

    known = RealLabelsImagenet(range(NUM_VALIDATION))
    return list(known.real_labels.values())


@dataclass(frozen=True)
class RealScore:
    """ReaL top-1: how often the prediction is one of an image's reassessed labels."""

    top1: float
    num_images: int
    """Images that have such labels."""


class RealLabels:
    """Scores predictions by the reassessed labels."""

    def __init__(self, source: Source, class_names: tuple[str, ...], where: str):
        self.source = source
        if validation_number(source.name(0)) is None:
            raise UserError(
                "ReaL labels need the original file names of ImageNet's validation set "
                f"(ILSVRC2012_val_00000001.JPEG), and {where} starts with "
                f"{source.name(0)}; rename the files, or remove --real."
            )
        self.numbers, _ = match_classes(class_names, imagenet_classes(), "The model")

    def score(self, predictions: Int64[Tensor, "images 3"]) -> RealScore:
        """The ReaL accuracy of some predictions."""
        labels = real_labels()
        hits = num_images = 0
        for index, _, predicted in predictions.tolist():
            number = validation_number(self.source.name(index))
            if number is None:
                raise UserError(
                    f"{self.source.name(index)} is not one of ImageNet's validation "
                    "files, so it has no ReaL label; remove --real."
                )
            if correct := labels[number]:
                num_images += 1
                hits += self.numbers[predicted] in correct
        if not num_images:
            raise UserError("None of the images has a ReaL label; remove --real.")
        return RealScore(100 * hits / num_images, num_images)


def validation_number(name: str) -> int | None:
    """The number of an ImageNet validation image, from 0; None for other names."""
    found = re.search(r"ILSVRC2012_val_(\d{8})", name)
    if found is None or not 1 <= int(found[1]) <= NUM_VALIDATION:
        return None
    return int(found[1]) - 1
