"""CIFAR-100 from scratch at its native 32 pixels."""

from t2t.recipes.small_images import from_scratch
from t2t.training.recipe import Recipe


def t2t_vit_12() -> Recipe:
    """T2T-ViT of 6.6 M parameters and 256 tokens, 300 epochs.

    t2t train cifar100.t2t_vit_12 --data /path/to/cifar100

    Time and top-1 are not measured yet.
    """
    return from_scratch("cifar100.t2t_vit_12", "t2t_vit_12_32", "cifar100", 32, 300)


RECIPES = {"t2t_vit_12": t2t_vit_12}
