"""Trials of the photograph recipe on Imagewoof: what `photos.json` trains on a GPU.

python -m t2t train benchmarks/jobs/photos_trials.py:pyramid --data imagewoof-160

Every trial changes one thing of `photos.imagewoof_20`, which the name of its function
says, and is scored on 1,000 of the training images.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from t2t.recipes.photos import IMAGEWOOF, SPLITS, imagewoof, photo_recipe
from t2t.training.recipe import ProgressiveResizing, Recipe, TokenDropping

HOLDOUT = 1_000
EPOCHS = 20


def trial(recipe: Recipe, name: str) -> Recipe:
    """A recipe scored on held-out training images at its end alone."""
    return replace(recipe, name=name, holdout=HOLDOUT, evaluate_every=recipe.epochs)


def plain() -> Recipe:
    return trial(imagewoof(EPOCHS), "plain")


def with_model(name: str, **model_args: Any) -> Recipe:
    base = plain()
    return replace(base, name=name, model_args={**base.model_args, **model_args})


def with_optimizer(name: str, **settings: Any) -> Recipe:
    base = plain()
    return replace(base, name=name, optimizer=replace(base.optimizer, **settings))


def with_augmentation(name: str, **settings: Any) -> Recipe:
    base = plain()
    return replace(base, name=name, augmentation=replace(base.augmentation, **settings))


def depthwise() -> Recipe:
    return with_model("depthwise", mlp="depthwise")


def conv_attention() -> Recipe:
    return with_model("conv_attention", mixer="conv_attention")


def both_convolutions() -> Recipe:
    return with_model("both_convolutions", mlp="depthwise", mixer="conv_attention")


def pyramid() -> Recipe:
    sizes = {"num_images": IMAGEWOOF, "image_size": (128, 128), "epochs": EPOCHS}
    base = photo_recipe("pyramid", "imagewoof", model="t2t_pyramid_base", **sizes)
    return trial(base, "pyramid")


def small_tokens() -> Recipe:
    """Tokens of 4 pixels on smaller images: 20×20 at 80 px."""
    base = with_model("small_tokens", splits=SPLITS[4])
    return replace(base, image_size=(80, 80))


def large_tokens() -> Recipe:
    return with_model("large_tokens", splits=SPLITS[16])


def shallower() -> Recipe:
    return with_model("shallower", depth=7, dim=512, num_heads=8)


def deeper() -> Recipe:
    return with_model("deeper", depth=24, dim=288, num_heads=9)


def class_token() -> Recipe:
    return with_model("class_token", class_token=True, pool="class")


def lower_rate() -> Recipe:
    return with_optimizer("lower_rate", lr=2e-3, adamw_lr=8e-4)


def higher_rate() -> Recipe:
    return with_optimizer("higher_rate", lr=8e-3, adamw_lr=3.2e-3)


def more_decay() -> Recipe:
    return with_optimizer("more_decay", weight_decay=0.15)


def adamw() -> Recipe:
    base = plain()
    return replace(base, name="adamw", optimizer=base.optimizer.as_adamw())


def smaller_batch() -> Recipe:
    return replace(plain(), name="smaller_batch", batch_size=32)


def larger_batch() -> Recipe:
    return replace(plain(), name="larger_batch", batch_size=128)


def repeated() -> Recipe:
    return replace(plain(), name="repeated", repeats=2)


def half_the_tokens() -> Recipe:
    dropping = TokenDropping(keep=0.5, until=0.8)
    return replace(plain(), name="half_the_tokens", token_dropping=dropping)


def smaller_crops() -> Recipe:
    base = plain()
    return replace(base, name="smaller_crops", crop=replace(base.crop, scale=(0.2, 1)))


def whole_images() -> Recipe:
    base = plain()
    return replace(base, name="whole_images", crop=replace(base.crop, scale=(0.6, 1)))


def no_mixing() -> Recipe:
    return with_augmentation("no_mixing", cutmix=0.0)


def mixed_always() -> Recipe:
    return with_augmentation("mixed_always", mix_probability=1.0)


def colours() -> Recipe:
    return with_augmentation("colours", rand_augment="rand-m5-mstd0.5-inc1")


def longer_average() -> Recipe:
    base = plain()
    return replace(base, name="longer_average", ema=replace(base.ema, decay=0.997))


def growing_images() -> Recipe:
    """80 px, then 104 px, then 128 px for the last two fifths."""
    resizing = ProgressiveResizing(initial_scale=0.625, until=0.6)
    return replace(plain(), name="growing_images", progressive_resizing=resizing)


def drop_path() -> Recipe:
    return replace(plain(), name="drop_path", drop_path=0.1)


TRIALS: dict[str, Callable[[], Recipe]] = {
    each.__name__: each
    for each in (
        plain,
        pyramid,
        both_convolutions,
        depthwise,
        conv_attention,
        smaller_batch,
        larger_batch,
        lower_rate,
        higher_rate,
        no_mixing,
        mixed_always,
        colours,
        smaller_crops,
        whole_images,
        repeated,
        half_the_tokens,
        growing_images,
        longer_average,
        drop_path,
        large_tokens,
        small_tokens,
        deeper,
        shallower,
        class_token,
        more_decay,
        adamw,
    )
}
"""The trials, the most important first."""
