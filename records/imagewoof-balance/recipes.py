"""A tiny T2T-ViT for dogs at 32 pixels."""

from t2t import EMA, Augmentation, CropConfig, OptimizerConfig, Recipe, Schedule


def small() -> Recipe:
    return Recipe(
        name="small",
        model="t2t_vit_7_32",
        model_args={
            "dim": 96,
            "depth": 4,
            "num_heads": 3,
            "token_dim": 16,
            "splits": ((3, 2, 1), (3, 2, 1), (3, 1, 1)),
        },
        image_size=(32, 32),
        epochs=12,
        evaluate_every=6,
        batch_size=64,
        optimizer=OptimizerConfig(
            name="muon", lr=4e-3, adamw_lr=2e-3, reference_batch_size=64
        ),
        schedule=Schedule(warmup_epochs=1, floor=0.01),
        ema=EMA(decay=0.99),
        crop=CropConfig(kind="random", scale=(0.4, 1.0)),
        augmentation=Augmentation(flip=0.5, smoothing=0.1),
    )
