"""What int8 costs in accuracy, measured beside float32 on the same images."""

from collections.abc import Callable

import torch

from t2t.deployment.accuracy import Runner, top1_of
from t2t.deployment.check_images import CheckImages, LabelledImages
from t2t.errors import UserError
from t2t.models.trained import TrainedModel

MAX_ACCURACY_LOSS = 2.0
"""Points of accuracy that int8 may cost."""
FEW_IMAGES = 2.5
MIN_AGREEMENT = 75.0
"""Without labels: per cent of images that int8 must give the same class."""


def compare_classes(
    float32: Runner, int8: Runner, images: CheckImages, *, multilabel: bool
) -> str:
    """How many images get the same class from both; an error if too few."""
    one, other = (torch.from_numpy(run(images.batches[0])) for run in (float32, int8))
    same = 100 * float((one.argmax(1) == other.argmax(1)).double().mean())
    if same < MIN_AGREEMENT:
        raise UserError(
            f"int8 gives the same class as float32 on {same:.0f} % of {images.origin}, "
            f"and {MIN_AGREEMENT:g} % are needed: export it without int8."
        )
    why = "no labelled images are given (--data)"
    if multilabel:
        why = "the model predicts several labels per image"
    return (
        f"The accuracy of int8 is not measured: {why}. It gives the same class as "
        f"float32 on {same:.0f} % of {images.origin}."
    )


def compare_accuracy(
    float32: Runner,
    int8: Runner,
    trained: TrainedModel,
    labelled: LabelledImages,
    progress: Callable[[int, int], None],
) -> str:
    """The accuracy of both; an error if int8 loses too much."""
    both = {"float32": float32, "int8": int8}
    top1 = top1_of(both, trained, labelled, progress)
    beside = (
        f"op-1 {top1['int8']:.2f} % in int8 and {top1['float32']:.2f} % in float32 on "
        f"{labelled.where}"
    )
    lost = top1["float32"] - top1["int8"]
    # Of few images, one is many points.
    if lost > MAX_ACCURACY_LOSS and lost * len(labelled.source) / 100 > FEW_IMAGES:
        raise UserError(
            f"int8 loses too much: t{beside}, and {MAX_ACCURACY_LOSS:g} points are "
            "allowed; export it without int8."
        )
    return f"T{beside}."
