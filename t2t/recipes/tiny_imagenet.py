"""Tiny-ImageNet (200 classes) from scratch at its native 64 pixels."""

from t2t.recipes.small_images import from_scratch
from t2t.training.recipe import Recipe


def t2t_vit_12() -> Recipe:
    """T2T-ViT of 6.6 M parameters and 256 tokens, 300 epochs.

    t2t train tiny_imagenet.t2t_vit_12 --data /path/to/tiny-imagenet-200

    Time and top-1 are not measured yet.
    """
    return from_scratch(
        "tiny_imagenet.t2t_vit_12", "t2t_vit_12_64", "tiny-imagenet-200", 64, 300
    )


RECIPES = {"t2t_vit_12": t2t_vit_12}
