"""ImageNet-1k by the published T2T-ViT recipe, for every model at 224 px."""

from collections.abc import Callable
from dataclasses import replace

from t2t.data.augment.config import Augmentation
from t2t.models.zoo import ZOO
from t2t.training.recipe import EMA, CropConfig, OptimizerConfig, Recipe, Schedule

# Learning rate and weight decay, as published; everything else is as for T2T-ViT-14.
PUBLISHED = {
    **dict.fromkeys(
        ("t2t_vit_7", "t2t_vit_10", "t2t_vit_12", "t2t_vit_7_distilled",
         "t2t_vit_12_distilled"),
        (1e-3, 0.03),
    ),
    **dict.fromkeys(
        ("t2t_vit_19", "t2t_vit_24", "t2t_vit_t_19", "t2t_vit_t_24"), (5e-4, 0.065)
    ),
}  # fmt: skip

TEACHER = "regnety_160.deit_in1k"
"""DeiT's teacher, a RegNetY-16GF, whose weights timm has."""

AUGMENTATION = Augmentation(
    flip=0.5,
    rand_augment="rand-m9-mstd0.5-inc1",
    mixup=0.8,
    cutmix=1.0,
    smoothing=0.1,
    erase=0.25,
)


def published(model: str) -> Recipe:
    """ImageNet-1k at 224 px for 310 epochs, as T2T-ViT was trained.

    t2t train imagenet.t2t_vit_14 --data /path/to/imagenet
    """
    lr, weight_decay = PUBLISHED.get(model, (5e-4, 0.05))
    return Recipe(
        name=f"imagenet.{model}",
        model=model,
        data="imagenet",
        image_size=(224, 224),
        epochs=310,
        batch_size=512,
        drop_path=0.1,
        optimizer=OptimizerConfig(lr=lr, weight_decay=weight_decay),
        # As published: the cosine starts at epoch 0, not after the warm-up.
        schedule=Schedule(
            warmup_epochs=10,
            warmup_prefix=False,
            update_every="epoch",
            start=1e-6 / lr,
            floor=1e-5 / lr,
            floor_epochs=10,
        ),
        ema=EMA(decay=0.99996),
        crop=CropConfig(kind="random", evaluation_fraction=0.9),
        # As published: eight GPUs, each mixing its own 64 images.
        augmentation=replace(AUGMENTATION, mix_group=64, cutmix_even=True),
    )


def distilled(model: str) -> Recipe:
    """The recipe for a model whose distillation token learns from DeiT's teacher.

    t2t train imagenet.t2t_vit_7_distilled --data /path/to/imagenet
    """
    return replace(
        published(model), task="distill_token_hard", task_args={"teacher": TEACHER}
    )


def recipe_of(model: str) -> Callable[[], Recipe]:
    """A function that returns the recipe of a model, with its docstring."""
    entry = ZOO[model]

    has_token = entry.config is not None and entry.config.distilled

    def recipe() -> Recipe:
        return distilled(model) if has_token else published(model)

    what = f"{entry.about[0].upper()}{entry.about[1:]}"
    if has_token:
        what += ", hard labels of a RegNetY-16GF"
    top1 = entry.paper and entry.paper.top1
    published_top1 = f"Published top-1: {top1} %. " if top1 else ""
    recipe.__doc__ = (
        f"{what}: {entry.parameters / 1e6:.1f} M parameters.\n\n"
        f"t2t train imagenet.{model} --data /path/to/imagenet\n\n"
        f"{published_top1}Time and top-1 are not measured yet."
    )
    return recipe


RECIPES = {
    name: recipe_of(name)
    for name, entry in ZOO.items()
    if entry.image_size == (224, 224)
}
