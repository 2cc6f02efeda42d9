"""Networks for photographs of 128 px by one recipe: T2T-ViT, ViTs and a ResNet."""

from dataclasses import replace
from typing import Any

from t2t import Recipe
from t2t.recipes.photos import photo_recipe
from t2t.training.recipe import TokenDropping

EPOCHS = 60
ALL_TOKENS = TokenDropping(keep=1.0)


def arm(name: str, model: str = "t2t_vit_14", **settings: Any) -> Recipe:
    """T2T-ViT-14 or another network, and settings of its model."""
    shared = photo_recipe(
        f"dead.{name}",
        "imagewoof",
        num_images=9_025,
        image_size=(128, 128),
        epochs=EPOCHS,
    )
    common = shared.model_args if model == "t2t_vit_14" else {}
    return replace(
        shared,
        model=model,
        model_args={**common, **settings},
        evaluate_every=EPOCHS,
        token_dropping=ALL_TOKENS,
    )


def t2t_vit() -> Recipe:
    """Soft splits with Performer token transformers: 16×16 tokens."""
    return arm("t2t_vit")


def vit() -> Recipe:
    """Hard patches of 8×8 pixels: 16×16 tokens, the same blocks."""
    return arm("vit", tokenizer="patch", patch_size=8)


def vit_wide() -> Recipe:
    """The paper's ViT-S/16: 8×8 tokens, eight blocks of width 768."""
    sizes = {"dim": 768, "depth": 8, "num_heads": 8, "mlp_ratio": 3}
    return arm("vit_wide", tokenizer="patch", patch_size=16, **sizes)


def resnet18() -> Recipe:
    """ResNet-18; stochastic depth is left out."""
    return replace(arm("resnet18", "resnet18"), drop_path=0.0)
