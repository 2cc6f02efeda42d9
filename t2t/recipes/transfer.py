"""Fine-tuning trained weights on other images, by published protocols.

The model is that of the weights: `--from WEIGHTS`.
"""

from collections.abc import Callable

from t2t.data.augment.config import Augmentation
from t2t.training.recipe import EMA, CropConfig, OptimizerConfig, Recipe, Schedule

BATCH = 512
"""Images per step in ViT's protocol."""


def as_t2t_vit(name: str, data: str) -> Recipe:
    """224 px, SGD, 60 epochs of batches of 64, as T2T-ViT was transferred to CIFAR."""
    return Recipe(
        name=name,
        model="t2t_vit_14",
        data=data,
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


def as_vit(name: str, data: str, *, epochs: int, lr: float) -> Recipe:
    """384 px, SGD, batches of 512, no decay, gradients clipped at 1, as ViT was."""
    return Recipe(
        name=name,
        model="t2t_vit_14",
        data=data,
        image_size=(384, 384),
        epochs=epochs,
        batch_size=BATCH,
        evaluate_every=max(epochs // 20, 1),
        optimizer=OptimizerConfig(
            name="sgd",
            lr=lr,
            body_lr=lr,
            reference_batch_size=BATCH,
            weight_decay=0.0,
            clip_norm=1.0,
        ),
        schedule=Schedule(warmup_epochs=0, floor=0.0),
        ema=EMA(decay=0.0),
        crop=CropConfig(kind="random", scale=(0.4, 1.0)),
        augmentation=Augmentation(flip=0.5),
    )


def cifar10() -> Recipe:
    """CIFAR-10 at 224 px from trained weights, as published for T2T-ViT.

    t2t train transfer.cifar10 --from WEIGHTS

    Published top-1: 98.3 % (T2T-ViT-14), 98.4 % (T2T-ViT-19). Time and top-1 are not
    measured yet.
    """
    return as_t2t_vit("transfer.cifar10", "cifar10")


def cifar100() -> Recipe:
    """CIFAR-100 at 224 px from trained weights, as published for T2T-ViT.

    t2t train transfer.cifar100 --from WEIGHTS

    Published top-1: 88.4 % (T2T-ViT-14), 89.0 % (T2T-ViT-19). Time and top-1 are not
    measured yet.
    """
    return as_t2t_vit("transfer.cifar100", "cifar100")


def flowers102() -> Recipe:
    """Flowers-102 at 384 px from trained weights: 500 steps of SGD, as ViT.

    t2t train transfer.flowers102 --from WEIGHTS

    Of its 2,040 training and validation images a batch of 512 makes 3 steps per epoch.
    Time and top-1 are not measured yet.
    """
    return as_vit("transfer.flowers102", "flowers102", epochs=167, lr=0.003)


def pets() -> Recipe:
    """Oxford-IIIT Pets at 384 px from trained weights: 500 steps of SGD, as ViT.

    t2t train transfer.pets --from WEIGHTS

    Of its 3,680 training images a batch of 512 makes 7 steps per epoch. Time and top-1
    are not measured yet.
    """
    return as_vit("transfer.pets", "pets", epochs=71, lr=0.003)


def imagenet_384() -> Recipe:
    """ImageNet at 384 px from weights at 224 px: 20,000 steps of SGD, as ViT.

    t2t train transfer.imagenet_384 --from WEIGHTS --data /path/to/imagenet

    Published top-1 of T2T-ViT-14 at 384 px, by a schedule of its own: 83.3 %. Time and
    top-1 are not measured yet.
    """
    return as_vit("transfer.imagenet_384", "imagenet", epochs=8, lr=0.01)


RECIPES: dict[str, Callable[[], Recipe]] = {
    "cifar10": cifar10,
    "cifar100": cifar100,
    "flowers102": flowers102,
    "pets": pets,
    "imagenet_384": imagenet_384,
}
