"""CIFAR-10 from scratch at its native 32 pixels."""

from t2t.recipes.small_images import from_scratch, sprint_from_scratch
from t2t.training.recipe import Recipe


def t2t_vit_7() -> Recipe:
    """T2T-ViT of 4.0 M parameters and 256 tokens, 300 epochs.

    t2t train cifar10.t2t_vit_7 --data /path/to/cifar10
    """
    return from_scratch("cifar10.t2t_vit_7", "t2t_vit_7_32", "cifar10", 32, 300)


def t2t_vit_12() -> Recipe:
    """T2T-ViT of 6.6 M parameters and 256 tokens, 340 epochs.

    t2t train cifar10.t2t_vit_12 --data /path/to/cifar10
    """
    return from_scratch("cifar10.t2t_vit_12", "t2t_vit_12_32", "cifar10", 32, 340)


def long() -> Recipe:
    """T2T-ViT of 6.6 M parameters and 256 tokens, 800 epochs.

    t2t train cifar10.long --data /path/to/cifar10
    """
    return from_scratch("cifar10.long", "t2t_vit_12_32", "cifar10", 32, 800)


def sprint() -> Recipe:
    """T2T-ViT of 4.0 M parameters, 45 epochs with light augmentation.

    t2t train cifar10.sprint --data /path/to/cifar10
    """
    return sprint_from_scratch("cifar10.sprint", "t2t_vit_7_32", "cifar10", 32, 45)


RECIPES = {
    "t2t_vit_7": t2t_vit_7,
    "t2t_vit_12": t2t_vit_12,
    "long": long,
    "sprint": sprint,
}
