"""Accuracy of several forms of one model on the same labelled images."""

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from t2t.data.batches import LoaderOptions, evaluation_batches
from t2t.data.crops import CenterCrop
from t2t.deployment.check_images import LabelledImages
from t2t.models.trained import TrainedModel

BATCH_SIZE = 32
Runner = Callable[[Tensor], np.ndarray]


def top1_of(
    runners: Mapping[str, Runner],
    trained: TrainedModel,
    labelled: LabelledImages,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, float]:
    """The top-1 accuracy of each runner in per cent."""
    batches = evaluation_batches(
        labelled.source,
        batch_size=min(BATCH_SIZE, len(labelled.source)),
        crop=CenterCrop(size=trained.image_size, fraction=trained.crop_fraction),
        device="cpu",
        channels=trained.channels,
        loader_options=LoaderOptions(num_workers=1, processes=False),
    )
    correct = dict.fromkeys(runners, 0)
    num_done, total = 0, len(labelled.source)
    for batch in batches:
        images, labels = batch.images[batch.valid], batch.labels[batch.valid]
        for name, run in runners.items():
            guesses = torch.from_numpy(run(images)).argmax(1)
            correct[name] += int((guesses == labels).sum())
        num_done += len(labels)
        progress(num_done, total)
    return {name: 100 * number / max(num_done, 1) for name, number in correct.items()}
