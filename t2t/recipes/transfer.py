"""Fine-tuning trained weights on other images, as published for T2T-ViT."""

from t2t.data.augment.config import Augmentation
from t2t.training.recipe import EMA, CropConfig, OptimizerConfig, Recipe, Schedule


def t2t_vit_14() -> Recipe:
    """T2T-ViT-14 at 224 px, SGD, 60 epochs; needs weights=PATH to start from.

    t2t train transfer.t2t_vit_14 --data cifar10 --set weights=PATH

    Time and top-1 are not measured yet.
    """
    return Recipe(
        name="transfer.t2t_vit_14",
        model="t2t_vit_14",
        data="cifar10",
        epochs=60,
        batch_size=64,
        drop_path=0.1,
        optimizer=OptimizerConfig(
            name="sgd",
            lr=0.05,
            body_lr=5e-4,
            reference_batch_size=64,
            weight_decay=5e-4,
        ),
        schedule=Schedule(warmup_epochs=0, floor=0.0),
        ema=EMA(decay=0.0),
        crop=CropConfig(kind="random", scale=(0.6, 1.0)),
        augmentation=Augmentation(flip=0.5, smoothing=0.1),
    )


RECIPES = {"t2t_vit_14": t2t_vit_14}
