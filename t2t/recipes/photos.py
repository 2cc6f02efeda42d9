"""Photographs from scratch: one recipe by their number, their size and the epochs.

Its parts are those that CIFAR-10 was trained with. At 128 pixels only 40 epochs of
Imagewoof are measured: 78.5 % (records/imagewoof-dead-channels).
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from t2t.data.augment.config import Augmentation
from t2t.models.config import Size, SplitNumbers
from t2t.models.zoo import CONFIGS
from t2t.recipes.small_images import MUON
from t2t.training.recipe import (
    EMA,
    CropConfig,
    Recipe,
    Schedule,
    TokenDropping,
)

SPLITS: dict[int, tuple[SplitNumbers, ...]] = {
    4: ((3, 2, 1), (3, 2, 1), (3, 1, 1)),
    8: ((7, 4, 2), (3, 2, 1), (3, 1, 1)),
    16: ((7, 4, 2), (3, 2, 1), (3, 2, 1)),
}
"""Soft splits by the pixels between two tokens."""
LARGEST_GRID = 20
"""Tokens along a side, from which the next larger stride is used."""
MIN_STEPS = 1500
"""Shorter runs use smaller batches, to have about this many steps."""
SMALLEST_BATCH, LARGEST_BATCH = 16, 512
MIXED_FROM, STRONG_FROM = 10, 60
"""Epochs from which images are mixed, and from which they are changed strongly."""
EMA_SHARE = 0.04
"""Share of the steps that the EMA averages over."""


def photo_recipe(
    name: str,
    data: str,
    *,
    num_images: int,
    image_size: Size,
    epochs: int,
    model: str = "t2t_vit_14",
    stride: int | None = None,
) -> Recipe:
    """Trains a T2T-ViT, or a pyramid of tokens, on photographs with Muon.

    Longer runs have larger batches, stronger augmentation and a longer EMA; from 60
    epochs they train on half of the tokens first.
    """
    batch_size = batch_for(num_images, epochs)
    num_steps = epochs * max(num_images // batch_size, 1)
    is_long = epochs >= STRONG_FROM
    # A pyramid has its own splits, and merges tokens that must all be there.
    is_pyramid = CONFIGS[model].wiring == "pyramid"
    keeps = 0.5 if is_long and not is_pyramid else 1.0
    return Recipe(
        name=name,
        model=model,
        model_args={} if is_pyramid else model_args(image_size, stride),
        data=data,
        image_size=image_size,
        epochs=epochs,
        batch_size=batch_size,
        drop_path=0.1 if is_long else 0.0,
        token_dropping=TokenDropping(keep=keeps, until=0.8),
        light_augment_share=0.05 if is_long else 0.1,
        evaluate_every=max(epochs // 20, 1),
        optimizer=MUON,
        schedule=Schedule(warmup_epochs=min(5.0, epochs / 10), floor=0.01),
        ema=EMA(decay=ema_decay(num_steps)),
        crop=CropConfig(
            kind="random",
            scale=(0.25, 1.0) if is_long else (0.35, 1.0),
            evaluation_fraction=0.9,
        ),
        augmentation=augmentation_for(epochs),
    )


def model_args(image_size: Size, stride: int | None = None) -> dict[str, Any]:
    """Settings of a T2T-ViT for photographs: tokens, positions, mean pooling."""
    return {
        "token_dropout": 0.0,
        "positions": "sinusoid_2d",
        "splits": SPLITS[stride or stride_for(image_size)],
        "class_token": False,
        "pool": "mean",
    }


def stride_for(image_size: Size) -> int:
    """The pixels between two tokens: the fewest that give a side at most 20 tokens."""
    fits = [stride for stride in SPLITS if max(image_size) <= LARGEST_GRID * stride]
    return min(fits, default=max(SPLITS))


def batch_for(num_images: int, epochs: int) -> int:
    """A power of two from 16 to 512; less for fewer than 32 images.

    An epoch has eight steps or more, and a short run has small batches.
    """
    wanted = min(num_images * epochs / MIN_STEPS, num_images / 8)
    most = min(LARGEST_BATCH, power_of_two(num_images / 2))
    return min(max(power_of_two(wanted), SMALLEST_BATCH), most)


def power_of_two(number: float) -> int:
    """The largest power of two that is not larger; at least 1."""
    return 1 << max(int(number).bit_length() - 1, 0)


def ema_decay(num_steps: int) -> float:
    """A decay that averages over a share of the steps."""
    return round(1 - 1 / max(EMA_SHARE * num_steps, 10.0), 5)


def augmentation_for(epochs: int) -> Augmentation:
    """Flips alone for very short runs, cutmix for short ones, all of it for others."""
    plain = Augmentation(flip=0.5, smoothing=0.1)
    if epochs < MIXED_FROM:
        return plain
    if epochs < STRONG_FROM:
        return replace(plain, cutmix=1.0, mix_probability=0.5)
    return replace(
        plain,
        rand_augment="rand-m5-mstd0.5-inc1",
        mixup=0.8,
        cutmix=1.0,
        erase=0.25,
    )


IMAGEWOOF = 9_025
"""Training images of Imagewoof."""


def imagewoof(epochs: int) -> Recipe:
    """The recipe for the photographs and the image size of Imagewoof's leaderboard."""
    return photo_recipe(
        f"photos.imagewoof_{epochs}",
        "imagewoof",
        num_images=IMAGEWOOF,
        image_size=(128, 128),
        epochs=epochs,
    )


def recipe_of(epochs: int) -> Callable[[], Recipe]:
    """A function that returns the recipe of a number of epochs, with its docstring."""

    def recipe() -> Recipe:
        return imagewoof(epochs)

    recipe.__doc__ = (
        "Imagewoof at 128 px from scratch: T2T-ViT of 21 M parameters, "
        f"{epochs} epochs.\n\n"
        f"t2t train photos.imagewoof_{epochs} --data /path/to/imagewoof-160\n\n"
        "Time and top-1 are not measured yet."
    )
    return recipe


RECIPES = {f"imagewoof_{epochs}": recipe_of(epochs) for epochs in (80, 5, 20, 200)}
