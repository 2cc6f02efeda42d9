"""The default recipe for a user's images, by their size and number."""

from dataclasses import replace

import numpy as np

from t2t.data.decoding.damage import DamagedImage
from t2t.data.decoding.decode import image_size
from t2t.data.label_config import NO_LABEL_CONFIG, LabelConfig
from t2t.data.sources import Source, open_splits
from t2t.models.zoo import CONFIGS
from t2t.recipes.imagenet import AUGMENTATION
from t2t.recipes.small_images import from_scratch
from t2t.training.recipe import (
    EMA,
    CropConfig,
    OptimizerConfig,
    Recipe,
    Schedule,
    TokenDropping,
)

NUM_SAMPLED = 16


def default_recipe(
    data: str, model: str | None = None, labels: LabelConfig = NO_LABEL_CONFIG
) -> Recipe:
    """A recipe for the size of the images (32, 64 or 224 px), or for a model."""
    recipe = replace(from_size(data, labels), labels=labels)
    return recipe if model in (None, recipe.model) else with_model(recipe, model)


def from_size(data: str, labels: LabelConfig = NO_LABEL_CONFIG) -> Recipe:
    """Trains T2T-ViT at 32, 64 or 224 px, the size nearest to the images."""
    # Labels do not matter yet: they are checked with the task.
    train = open_splits(data, labels=False, label_config=labels).train
    side = typical_side(train)
    batch_size = min(fitting_batch(len(train)), 512)
    if side <= 96:
        size = 32 if side <= 48 else 64
        recipe = from_scratch("own", f"t2t_vit_7_{size}", data, size, 100)
        return replace(recipe, batch_size=batch_size)
    return Recipe(
        name="own",
        model="t2t_vit_7",
        data=data,
        epochs=100,
        batch_size=batch_size,
        drop_path=0.1,
        optimizer=OptimizerConfig(lr=1e-3, scaling="sqrt"),
        schedule=Schedule(warmup_epochs=5),
        ema=EMA(decay=0.9998),
        crop=CropConfig(kind="random", scale=(0.2, 1.0), evaluation_fraction=0.9),
        augmentation=AUGMENTATION,
    )


def with_model(recipe: Recipe, model: str) -> Recipe:
    """The recipe with another model, without options of the first model.

    Some timm models have no matrices for Muon and no drop path.
    """
    recipe = replace(recipe, model=model, model_args={}, token_dropping=TokenDropping())
    if model in CONFIGS:
        return recipe
    return replace(recipe, drop_path=0.0, optimizer=recipe.optimizer.as_adamw())


def typical_side(source: Source) -> int:
    """The median of the short sides of a few images."""
    chosen = np.linspace(0, len(source) - 1, min(NUM_SAMPLED, len(source)))
    sizes = [_size(source, int(index)) for index in chosen]
    sides = [min(size) for size in sizes if min(size)]
    return int(np.median(sides)) if sides else 0


def _size(source: Source, index: int) -> tuple[int, int]:
    """Height and width from an image's header; 0 if it is damaged."""
    try:
        data = source.read(index)
    except DamagedImage:
        return 0, 0
    if isinstance(data, bytes):
        return image_size(data)
    _, height, width = data.shape
    return height, width


def fitting_batch(num_images: int) -> int:
    """A power of two for about 16 steps per epoch, at most the number of images."""
    return min(1 << max(3, (num_images // 16).bit_length() - 1), num_images)
