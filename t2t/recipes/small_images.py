"""The recipe shared by CIFAR and Tiny-ImageNet: small images at native size."""

from t2t.data.augment.config import Augmentation
from t2t.training.recipe import EMA, OptimizerConfig, Recipe, Schedule, TokenDropping

MUON = OptimizerConfig(
    name="muon",
    muon_on="tokens_too",
    lr=4e-3,
    adamw_lr=1.6e-3,
    reference_batch_size=1024,
    scaling="sqrt",
    weight_decay=0.05,
)
"""Muon on tokenizer and blocks, AdamW on the rest, for T2T-ViTs from scratch."""


def from_scratch(name: str, model: str, data: str, side: int, epochs: int) -> Recipe:
    """Muon on tokenizer and blocks, strong mixup and cutmix, EMA of the weights.

    The first 80 % of the epochs use half of the tokens, which is faster; the last 5 %
    only flip and shift the images. Positions are fixed 2-D sinusoids.
    """
    return Recipe(
        name=name,
        model=model,
        model_args={"token_dropout": 0.0, "positions": "sinusoid_2d"},
        data=data,
        image_size=(side, side),
        epochs=epochs,
        batch_size=512,
        drop_path=0.1,
        token_dropping=TokenDropping(keep=0.5, until=0.8),
        light_augment_share=0.05,
        evaluate_every=max(epochs // 20, 1),
        optimizer=MUON,
        schedule=Schedule(warmup_epochs=5, floor=0.01),
        ema=EMA(decay=0.998),
        augmentation=Augmentation(
            crop_padding=side // 8,
            flip=0.5,
            rand_augment="rand-m5-mstd0.5-inc1",
            mixup=0.8,
            cutmix=1.0,
            smoothing=0.1,
            erase=0.25,
            mean=(0.4914, 0.4822, 0.4465),
            std=(0.247, 0.2435, 0.2616),
        ),
    )
