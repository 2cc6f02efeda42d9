"""Fine-tuning on a few examples, as the last and dearest probe."""

import hashlib
from dataclasses import fields
from pathlib import Path
from typing import Any

from torch import nn

from t2t.data.augment.config import Augmentation
from t2t.data.sources import Splits
from t2t.models.trained import TrainedModel
from t2t.models.vit import VisionTransformer
from t2t.models.zoo import CONFIGS
from t2t.probing.images import some_of
from t2t.training.loop import Result, Runtime, train
from t2t.training.recipe import (
    EMA,
    SET_ELSEWHERE,
    CropConfig,
    OptimizerConfig,
    Recipe,
    Schedule,
)

LARGEST_PADDED = 96
"""Images up to this side are shifted in training; larger ones are cropped."""


def finetune_recipe(
    trained: TrainedModel, data: str, num_images: int, epochs: int, seed: int
) -> Recipe:
    """AdamW with layer-wise decay and light augmentation, for any weights."""
    height, width = trained.image_size
    small = max(height, width) <= LARGEST_PADDED
    if small:
        crop = CropConfig(evaluation_fraction=trained.crop_fraction)
    else:
        crop = CropConfig(
            kind="random", scale=(0.5, 1.0), evaluation_fraction=trained.crop_fraction
        )
    return Recipe(
        name=f"finetune_{num_images}",
        model=trained.name,
        model_args=model_args(trained.model, trained.name),
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
            flip=0.5,
            smoothing=0.1,
            mean=trained.mean,
            std=trained.std,
        ),
    )


def model_args(model: nn.Module, name: str) -> dict[str, Any]:
    """How a model of ours differs from the one of its name; empty for timm's."""
    if not isinstance(model, VisionTransformer):
        return {}
    own, named = model.config, CONFIGS[name]
    return {
        field.name: getattr(own, field.name)
        for field in fields(own)
        if field.name not in SET_ELSEWHERE
        and getattr(own, field.name) != getattr(named, field.name)
    }


def finetune(
    trained: TrainedModel,
    splits: Splits,
    num: int,
    epochs: int,
    seed: int,
    folder: Path,
    runtime: Runtime,
) -> Result:
    """Fine-tunes on some of the training images; the same call resumes."""
    drawn = some_of(splits.train, num, seed)
    recipe = finetune_recipe(trained, splits.description, len(drawn), epochs, seed)
    return train(
        recipe,
        folder=folder,
        runtime=runtime,
        quiet=True,
        splits=Splits(drawn, splits.val, splits.description),
    )


def weights_digest(model: nn.Module) -> str:
    """A few letters that differ for other weights, for a folder's name."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:8]
