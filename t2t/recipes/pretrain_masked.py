"""Pre-training without labels by masking parts of small images."""

from dataclasses import replace

from t2t.recipes.small_images import from_scratch
from t2t.training.recipe import CropConfig, Recipe, TokenDropping


def masked_patches() -> Recipe:
    """T2T-ViT of 6.6 M parameters predicts the mean colours of masked patches.

    t2t train pretrain.masked_patches --data /path/to/cifar10

    CIFAR-10 at 32 px, 300 epochs. Time and accuracy are not measured yet.
    """
    return masked("masked_patches", epochs=300)


def masked_autoencoder() -> Recipe:
    """T2T-ViT of 6.6 M parameters reconstructs three quarters of each image.

    t2t train pretrain.masked_autoencoder --data /path/to/cifar10

    CIFAR-10 at 32 px, 800 epochs. Time and loss are not measured yet.
    """
    return masked("masked_autoencoder", epochs=800)


def masked(task: str, epochs: int) -> Recipe:
    """The cropped and flipped images, and the model of `cifar10.t2t_vit_12`.

    Colours are to be predicted, so they are not changed; the mask hides enough.
    """
    shared = from_scratch(f"pretrain.{task}", "t2t_vit_12_32", "cifar10", 32, epochs)
    return replace(
        shared,
        task=task,
        drop_path=0.0,
        token_dropping=TokenDropping(),
        light_augment_share=0.0,
        crop=CropConfig(kind="random", scale=(0.3, 1.0)),
        augmentation=replace(
            shared.augmentation,
            crop_padding=0,
            rand_augment=None,
            mixup=0.0,
            cutmix=0.0,
            smoothing=0.0,
            erase=0.0,
        ),
    )
