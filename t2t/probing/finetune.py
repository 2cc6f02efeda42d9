"""Fine-tuning on a few examples: the last and slowest probe."""

import hashlib
import json
from pathlib import Path
from typing import Any

from torch import nn

from t2t.config import to_json
from t2t.data.augment.config import Augmentation
from t2t.data.sources import Splits
from t2t.models.checkpoint_io.checksum import tensors_checksum
from t2t.models.pretrained import nearest_model
from t2t.models.trained import TrainedModel
from t2t.models.vit import VisionTransformer
from t2t.probing.images import some_of
from t2t.training.recipe import (
    EMA,
    CropConfig,
    OptimizerConfig,
    Recipe,
    Schedule,
)
from t2t.training.result import Result
from t2t.training.runtime import Runtime
from t2t.training.train import train

LARGEST_PADDED = 96
"""Images up to this side are shifted in training; larger ones are cropped."""


def finetune_recipe(
    trained: TrainedModel, data: str, num_images: int, epochs: int, seed: int
) -> Recipe:
    """AdamW with layer-wise decay and light augmentation, for any weights."""
    model, model_args = starting_model(trained)
    height, width = trained.image_size
    small = max(height, width) <= LARGEST_PADDED
    if small:
        crop = CropConfig(evaluation_fraction=trained.crop_fraction)
    else:
        crop = CropConfig(
            kind="random", scale=(0.5, 1.0), evaluation_fraction=trained.crop_fraction
        )
    return Recipe(
        name=f"finetuned_{num_images}",
        model=model,
        model_args=model_args,
        weights=trained.path,
        data=data,
        image_size=trained.image_size,
        channels=trained.channels,
        epochs=epochs,
        batch_size=min(64, num_images),
        seed=seed,
        evaluate_every=epochs,  # nothing is chosen by the images it is evaluated on
        optimizer=OptimizerConfig(
            lr=1e-3, reference_batch_size=64, layer_decay=0.75, clip_norm=1.0
        ),
        schedule=Schedule(warmup_epochs=epochs / 10, floor=0.0),
        ema=EMA(decay=0.0),
        crop=crop,
        augmentation=Augmentation(
            crop_padding=min(height, width) // 8 if small else 0,
            flip=0.0,  # digits and letters must not be mirrored
            smoothing=0.1,
            mean=trained.mean,
            std=trained.std,
        ),
    )


def starting_model(trained: TrainedModel) -> tuple[str, dict[str, Any]]:
    """The name of a model, and how it differs from the model of that name."""
    if not isinstance(trained.model, VisionTransformer):
        return trained.name, {}
    return nearest_model(trained.name, trained.model.config)


def finetune(
    trained: TrainedModel,
    splits: Splits,
    *,
    num: int,
    epochs: int,
    seed: int,
    parent: Path,
    runtime: Runtime,
) -> Result:
    """Fine-tunes on some of the training images; the same call resumes.

    The run folder's name differs for other weights, images and settings.
    """
    data = splits.description
    drawn = some_of(splits.train, num, seed)
    splits = Splits(drawn, splits.val, data)
    recipe = finetune_recipe(trained, data, len(drawn), epochs, seed)
    name = f"{recipe.name}-seed{seed}-{digest(trained.model, recipe, splits)}"
    return train(
        recipe, folder=parent / name, runtime=runtime, quiet=True, splits=splits
    )


def digest(model: nn.Module, recipe: Recipe, splits: Splits) -> str:
    """A few letters that differ for other weights, settings or images."""
    sha256 = hashlib.sha256(json.dumps(to_json(recipe), sort_keys=True).encode())
    for source in (splits.train, splits.val):
        sha256.update(source.fingerprint().encode())
    sha256.update(tensors_checksum(model.state_dict()).encode())
    return sha256.hexdigest()[:8]
