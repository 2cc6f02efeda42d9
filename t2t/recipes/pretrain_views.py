"""Pre-training without labels by comparing views of small images."""

from dataclasses import replace
from typing import Any

from t2t.data.augment.config import Augmentation
from t2t.recipes.small_images import from_scratch
from t2t.training.recipe import (
    CropConfig,
    OptimizerConfig,
    Recipe,
    Schedule,
    TokenDropping,
)


def simclr() -> Recipe:
    """SimCLR for T2T-ViT of 4.0 M parameters at 32 px, 500 epochs.

    t2t train pretrain.simclr --data /path/to/images

    Temperature and head are solo-learn's for CIFAR-10, the augmentation is that of the
    SimCLR paper for CIFAR-10. The epochs are meant for half an hour of one H200.
    Time and accuracy are not measured yet.
    """
    recipe = two_views("simclr", epochs=500, temperature=0.2)
    jitter = (0.4, 0.4, 0.4, 0.1)
    augmentation = replace(recipe.augmentation, colour_jitter=jitter, solarize=(0.0,))
    return replace(recipe, augmentation=augmentation)


def byol() -> Recipe:
    """BYOL for T2T-ViT of 4.0 M parameters at 32 px, 400 epochs.

    t2t train pretrain.byol --data /path/to/images

    Momentum, heads and augmentation are solo-learn's for CIFAR-10. The epochs are meant
    for half an hour of one H200. Time and accuracy are not measured yet.
    """
    return two_views("byol", epochs=400, hidden_dim=4096, momentum=0.99)


def moco_v3() -> Recipe:
    """MoCo v3 for T2T-ViT of 4.0 M parameters at 32 px, 400 epochs.

    t2t train pretrain.moco_v3 --data /path/to/images

    The optimizer is the published one for ViT-S, whose learning rate for a batch of
    4,096 is scaled by the root of the batch size. Momentum, heads and augmentation are
    solo-learn's for CIFAR-10. The epochs are meant for half an hour of one H200. Time
    and accuracy are not measured yet.
    """
    return two_views(
        "moco_v3", epochs=400, hidden_dim=4096, momentum=0.99, temperature=0.2
    )


def dino() -> Recipe:
    """DINO with four small crops for T2T-ViT of 4.0 M parameters at 32 px, 300 epochs.

    t2t train pretrain.dino --data /path/to/images

    The optimizer is the published one for ViT-S, without its schedule of the weight
    decay; the number of prototypes is solo-learn's for CIFAR-10. The epochs are meant
    for half an hour of one H200. Time and accuracy are not measured yet.
    """
    recipe = two_views(
        "dino", epochs=300, momentum=0.996, num_prototypes=4096, local_crops=4
    )
    return replace(
        recipe,
        crop=replace(recipe.crop, scale=(0.25, 1.0)),
        optimizer=OptimizerConfig(
            lr=5e-4, reference_batch_size=256, weight_decay=0.04, clip_norm=3.0
        ),
        schedule=Schedule(warmup_epochs=30, floor=0.002),
    )


def two_views(task: str, epochs: int, **task_args: Any) -> Recipe:
    """Two random crops of each image, recoloured; AdamW as for MoCo v3.

    Without drop path and token dropping.
    """
    recipe = from_scratch(f"pretrain.{task}", "t2t_vit_7_32", "cifar10", 32, epochs)
    return replace(
        recipe,
        task=task,
        task_args=task_args,
        drop_path=0.0,
        token_dropping=TokenDropping(),
        light_augment_share=0.0,
        optimizer=OptimizerConfig(
            lr=2.4e-3, reference_batch_size=4096, scaling="sqrt", weight_decay=0.1
        ),
        schedule=Schedule(warmup_epochs=40, floor=0.0),
        crop=CropConfig(kind="random", scale=(0.08, 1.0)),
        augmentation=Augmentation(
            flip=0.5,
            colour_jitter=(0.4, 0.4, 0.2, 0.1),
            jitter_probability=0.8,
            grayscale=(0.2,),
            solarize=(0.0, 0.2),
            mean=recipe.augmentation.mean,
            std=recipe.augmentation.std,
        ),
    )
