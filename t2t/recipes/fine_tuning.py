"""Recipes that start from trained weights: all of the model, or only the head."""

from dataclasses import replace

from t2t.data.augment.config import Augmentation
from t2t.data.label_config import NO_LABEL_CONFIG, LabelConfig
from t2t.data.sources import open_splits
from t2t.models.config import Size
from t2t.models.pretrained import Pretrained
from t2t.recipes.default import fitting_batch, with_model
from t2t.training.recipe import (
    EMA,
    CropConfig,
    OptimizerConfig,
    Recipe,
    Schedule,
    TokenDropping,
)

# Customary values for fine-tuning transformers, not results of measurements.
IMAGES_SHOWN = 500_000
MIN_EPOCHS, MAX_EPOCHS = 5, 50
LARGEST_BATCH = 256
WARMUP_SHARE = 0.05
SMALL_SIDE = 64
"""Images up to this size are shifted, larger ones are cropped."""


def fine_tuning(
    start: Pretrained,
    data: str,
    labels: LabelConfig = NO_LABEL_CONFIG,
    *,
    image_size: Size | None = None,
    epochs: int | None = None,
) -> Recipe:
    """Fine-tunes weights on other images, with defaults by the number of images."""
    num_images = len(open_splits(data, labels=False, label_config=labels).train)
    size = image_size or start.image_size
    epochs = epochs or num_epochs(num_images)
    is_small = min(size) <= SMALL_SIDE
    crop = CropConfig(
        kind="resize" if is_small else "random",
        scale=(0.4, 1.0),
        evaluation_fraction=start.crop_fraction,
    )
    recipe = Recipe(
        name="fine_tuned",
        model=start.model,
        data=data,
        labels=labels,
        image_size=size,
        epochs=epochs,
        batch_size=min(fitting_batch(num_images), LARGEST_BATCH),
        drop_path=0.1 if start.is_ours else 0.0,
        evaluate_every=max(epochs // 20, 1),
        optimizer=OptimizerConfig(
            lr=5e-4,
            reference_batch_size=LARGEST_BATCH,
            scaling="sqrt",
            weight_decay=0.05,
            layer_decay=0.75,
            clip_norm=1.0,
        ),
        schedule=Schedule(warmup_epochs=WARMUP_SHARE * epochs, floor=0.01),
        ema=EMA(decay=0.999),
        crop=crop,
        augmentation=Augmentation(
            crop_padding=min(size) // 8 if is_small else 0,
            flip=0.5,
            rand_augment="rand-m5-mstd0.5-inc1" if start.channels in (1, 3) else None,
            smoothing=0.1,
        ),
    )
    return with_weights(recipe, start)


def num_epochs(num_images: int) -> int:
    """Epochs that show 500,000 images, from 5 to 50."""
    return min(max(round(IMAGES_SHOWN / num_images), MIN_EPOCHS), MAX_EPOCHS)


def with_weights(recipe: Recipe, start: Pretrained) -> Recipe:
    """The recipe with the weights, their model and their normalisation."""
    if not start.is_ours and recipe.model != start.model:
        recipe = with_model(recipe, start.model)
    return replace(
        recipe,
        model=start.model,
        model_args=start.model_args,
        weights=start.weights,
        weights_checksum=start.checksum,
        channels=start.channels,
        augmentation=replace(recipe.augmentation, mean=start.mean, std=start.std),
    )


def head_alone(recipe: Recipe) -> Recipe:
    """The recipe with all but the head frozen."""
    return replace(
        recipe,
        freeze=True,
        optimizer=recipe.optimizer.as_adamw(),  # Muon does not train heads
        token_dropping=TokenDropping(),
    )


def head_alone_by_default(recipe: Recipe) -> Recipe:
    """A fine-tuning recipe with the defaults for training only the head."""
    recipe = head_alone(recipe)
    return replace(
        recipe,
        name="fine_tuned_head",
        drop_path=0.0,
        optimizer=replace(
            recipe.optimizer, lr=5e-3, weight_decay=0.0, layer_decay=1.0, clip_norm=0.0
        ),
        augmentation=replace(recipe.augmentation, rand_augment=None, smoothing=0.0),
    )
