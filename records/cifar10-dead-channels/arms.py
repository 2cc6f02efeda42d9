"""A small T2T-ViT and a small ViT for 32 px images, by one recipe."""

from dataclasses import replace

from t2t import Recipe
from t2t.recipes.cifar10 import sprint
from t2t.training.recipe import TokenDropping

SIZE = {"dim": 96, "token_dim": 48, "depth": 6, "num_heads": 3, "mlp_ratio": 2.0}


def t2t_vit() -> Recipe:
    """Soft splits with Performer token transformers: 8x8 tokens."""
    shared = sprint()
    return replace(
        shared,
        name="dead.t2t_vit",
        model_args={
            **shared.model_args,
            **SIZE,
            "splits": ((3, 2, 1), (3, 2, 1), (3, 1, 1)),
        },
        data="cifar10",
        epochs=6,
        evaluate_every=6,
        batch_size=128,
        schedule=replace(shared.schedule, warmup_epochs=1),
        token_dropping=TokenDropping(keep=1.0),
    )


def vit() -> Recipe:
    """Hard patches of 4x4 pixels: 8x8 tokens, the same blocks."""
    shared = t2t_vit()
    return replace(
        shared,
        name="dead.vit",
        model_args={**shared.model_args, "tokenizer": "patch", "patch_size": 4},
    )
