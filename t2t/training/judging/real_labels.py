"""ImageNet's validation images under the labels that were reassessed in 2020 (ReaL)."""

import re
from dataclasses import dataclass, field
from functools import cache

import torch
from torch import Tensor, nn

from t2t.data.order import Batch
from t2t.data.sources import Source
from t2t.errors import UserError
from t2t.models.class_names import imagenet_classes
from t2t.shapes import Images
from t2t.training.evaluate import Preparation
from t2t.training.judging.matching import match_classes
from t2t.training.parallel import Processes, sum_over_all

NUM_VALIDATION = 50_000


@cache
def real_labels() -> list[list[int]]:
    """All right classes of each validation image of ImageNet, often several or none."""
    from timm.data import RealLabelsImagenet  # slow to import, and seldom asked for

    known = RealLabelsImagenet(range(NUM_VALIDATION))
    return list(known.real_labels.values())


@dataclass(frozen=True)
class Noting(Preparation):
    """Prepares images and notes which ones they were."""

    indices: list[Tensor] = field(default_factory=list)

    def __call__(self, batch: Batch) -> Images:
        self.indices.append(torch.where(batch.valid, batch.indices, -1))
        return super().__call__(batch)


@dataclass(frozen=True)
class RealScore:
    """How often the first guess is one of an image's reassessed labels."""

    top1: float
    num_images: int
    """Images that have such labels."""


class RealLabels:
    """Watches an evaluation and counts what the reassessed labels call right."""

    def __init__(self, source: Source, class_names: tuple[str, ...], where: str):
        self.source = source
        self.guesses: list[Tensor] = []
        self.indices: list[Tensor] = []
        if validation_number(source.name(0)) is None:
            raise UserError(
                "ReaL labels belong to ImageNet's validation files by their names "
                f"(ILSVRC2012_val_00000001.JPEG), and {where} begins with "
                f"{source.name(0)}; leave --real out, or give the original files."
            )
        numbers, _ = match_classes(class_names, imagenet_classes(), "The model")
        self.numbers = torch.from_numpy(numbers)

    def watch(self, model: nn.Module, prepare: Preparation) -> Preparation:
        """Notes all guesses of a model from now on; evaluate with what this returns."""
        noting = Noting(prepare.mean, prepare.std)
        self.indices = noting.indices

        def note(module: nn.Module, images: object, logits: Tensor) -> None:
            self.guesses.append(logits.argmax(1))

        model.register_forward_hook(note)
        return noting

    def score(self, team: Processes) -> RealScore:
        """What the watched evaluation comes to, over all processes."""
        labels = real_labels()
        totals = torch.zeros(2, device=team.device)
        indices = torch.cat(self.indices).tolist()
        guesses = self.numbers[torch.cat(self.guesses).cpu()].tolist()
        for index, guess in zip(indices, guesses, strict=True):
            if index < 0:
                continue
            number = validation_number(self.source.name(index))
            if number is None:
                raise UserError(
                    f"{self.source.name(index)} is not one of ImageNet's validation "
                    "files, so it has no ReaL label; leave --real out."
                )
            if right := labels[number]:
                totals += torch.tensor([guess in right, 1.0], device=team.device)
        hits, num_images = sum_over_all(totals, team).tolist()
        if not num_images:
            raise UserError("None of the images has a ReaL label; leave --real out.")
        return RealScore(100 * hits / num_images, int(num_images))


def validation_number(name: str) -> int | None:
    """Which of ImageNet's validation images a file is, from 0, by its name."""
    found = re.search(r"ILSVRC2012_val_(\d{8})", name)
    if found is None or not 1 <= int(found[1]) <= NUM_VALIDATION:
        return None
    return int(found[1]) - 1
