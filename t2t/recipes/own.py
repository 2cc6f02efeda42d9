"""A recipe for images of one's own: what to start with when none is named."""

from dataclasses import replace

import numpy as np

from t2t.data.decoding.damage import DamagedImage
from t2t.data.decoding.decode import image_size
from t2t.data.sources import Source, open_splits
from t2t.models.builtin import NAME as BUILTIN
from t2t.models.zoo import OURS
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

NUM_LOOKED_AT = 16


def for_images(
    data: str, model: str | None = None, weights: str | None = None
) -> Recipe:
    """A recipe for the size of the images (32, 64 or 224), or for the given model.

    With the built-in weights it is a recipe for the built-in model at 32 pixels.
    """
    if weights == BUILTIN and model is None:
        return from_builtin(data)
    recipe = for_their_size(data)
    return recipe if model in (None, recipe.model) else with_model(recipe, model)


def for_their_size(data: str) -> Recipe:
    """T2T-ViT for 32, 64 or 224 pixels."""
    train = open_splits(data).train
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


def from_builtin(data: str) -> Recipe:
    """Fine-tunes the built-in model, with a batch size for the number of images."""
    num_images = len(open_splits(data).train)
    recipe = from_scratch("fine_tuned", "t2t_vit_7_32", data, 32, 100)
    return replace(recipe, batch_size=min(fitting_batch(num_images), 512))


def with_model(recipe: Recipe, model: str) -> Recipe:
    """The recipe without what only the model it was made for takes.

    Of timm's networks, some have no blocks of matrices for Muon and no drop path.
    """
    recipe = replace(recipe, model=model, model_args={}, token_dropping=TokenDropping())
    if model in OURS:
        return recipe
    return replace(recipe, drop_path=0.0, optimizer=recipe.optimizer.for_all())


def typical_side(source: Source) -> int:
    """The median of the short sides of a few images spread over the source."""
    chosen = np.linspace(0, len(source) - 1, min(NUM_LOOKED_AT, len(source)))
    sizes = [_size(source, int(index)) for index in chosen]
    sides = [min(size) for size in sizes if min(size)]
    return int(np.median(sides)) if sides else 0


def _size(source: Source, index: int) -> tuple[int, int]:
    """Height and width in an image's header; 0 if it is damaged."""
    try:
        data = source.read(index)
    except DamagedImage:
        return 0, 0
    if isinstance(data, bytes):
        return image_size(data)
    _, height, width = data.shape
    return height, width


def fitting_batch(num_images: int) -> int:
    """A power of two that leaves some 16 steps to an epoch, or all of a few images."""
    return min(1 << max(3, (num_images // 16).bit_length() - 1), num_images)
