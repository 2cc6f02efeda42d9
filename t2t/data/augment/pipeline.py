"""The whole augmentation of a batch on its device: uint8 to floats and targets."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from t2t.data.augment.config import Augmentation
from t2t.data.augment.erase import NOISE_STREAM, draw_erase_box, erase
from t2t.data.augment.geometry import channel_values, crop_and_flip
from t2t.data.augment.mix import (
    Mixture,
    draw_mixture,
    mix_images,
    mix_targets,
    soft_targets,
)
from t2t.data.augment.policies import (
    RandAugment,
    colour_jitter,
    grayscale_blur_solarize,
    three_augment,
)
from t2t.data.rng import CounterRng, stream_word
from t2t.ops import augment_triton
from t2t.shapes import Images, Labels, Pixels


def distort(
    images: Pixels, rng: CounterRng, config: Augmentation, view: int = 0
) -> Pixels:
    """Cropped, flipped, moved and recoloured images, each by its own draws."""
    offset = is_flipped = None
    padding = config.crop_padding
    if padding:
        offset = rng.integers("crop", 2 * padding + 1, 2)
    if config.flip:
        is_flipped = rng.bernoulli("flip", config.flip)[:, 0]
    if padding or config.flip:
        images = crop_and_flip(images, offset, is_flipped, padding, config.crop_fill)
    if (policy := RandAugment.of(config)) is not None:
        images = policy(images, rng, config.fill, config.interpolation)
    if config.three_augment:
        images = three_augment(images, rng)
    images = colour_jitter(images, rng, config.colour_jitter, config.jitter_probability)
    return grayscale_blur_solarize(images, rng, config, view)


def scale_and_shift(
    images: Tensor, mean: tuple[float, ...], std: tuple[float, ...]
) -> tuple[Float[Tensor, "channels 1 1"], Float[Tensor, "channels 1 1"]]:
    """The factor and the offset that normalise levels from 0 to 255."""
    scale = [1 / (255 * each) for each in std]
    shift = [-centre / each for centre, each in zip(mean, std, strict=True)]
    first, second = (
        channel_values(each, images, torch.float32) for each in (scale, shift)
    )
    return first, second


def normalise(
    images: Float[Tensor, "batch channels height width"] | Pixels,
    mean: tuple[float, ...],
    std: tuple[float, ...],
) -> Images:
    """Levels from 0 to 255, normalised by mean and standard deviation."""
    scale, shift = scale_and_shift(images, mean, std)
    return images.float() * scale + shift


def levels_of(
    images: Images, mean: tuple[float, ...], std: tuple[float, ...]
) -> Float[Tensor, "batch channels height width"]:
    """The whole levels from 0 to 255 that were normalised."""
    scale, shift = scale_and_shift(images, mean, std)
    return ((images.float() - shift) / scale).round()


def mix_normalise_erase(
    pixels: Pixels,
    mixture: Mixture | None,
    box: Int64[Tensor, "batch 4"] | None,
    rng: CounterRng,
    config: Augmentation,
) -> Images:
    """Pixels as floats: mixed by the mixture, normalised and erased in the box."""
    group = None if mixture is None else config.mix_group_for(len(pixels))
    if augment_triton.has_kernel(pixels):
        is_noisy = box is not None and config.erase_fill == "noise"
        floats: Images = augment_triton.mix_normalise_erase(
            pixels,
            None if mixture is None else mixture.kept,
            None if mixture is None else mixture.cut,
            group or len(pixels),
            *scale_and_shift(pixels, config.mean, config.std),
            box,
            rng.keys if is_noisy else None,
            stream_word(NOISE_STREAM),
        )
        return floats
    levels = pixels.float()
    if mixture is not None:
        levels = mix_images(levels, mixture, group)
    floats = normalise(levels, config.mean, config.std)
    if box is not None:
        floats = erase(floats, box, rng, config.erase_fill)
    return floats


def augment_images(
    images: Pixels,
    rng: CounterRng,
    config: Augmentation,
    mixture: Mixture | None = None,
    view: int = 0,
) -> Images:
    """Augmented, normalised images to train on, for tasks with or without labels.

    Each image depends on its own draws alone, unless a mixture is given: `mixup`,
    `cutmix` and `smoothing` of the config concern `augment` only. The number of the
    view selects probabilities; give `rng.for_view(view)` too.
    """
    return normalise_and_erase(distort(images, rng, config, view), rng, config, mixture)


def normalise_and_erase(
    pixels: Pixels,
    rng: CounterRng,
    config: Augmentation,
    mixture: Mixture | None = None,
) -> Images:
    """What `augment_images` does after `distort`."""
    height, width = pixels.shape[2:]
    box = None
    if config.erase > 0:
        box = draw_erase_box(
            rng, height, width, config.erase, config.erase_area, config.erase_aspect
        )
    return mix_normalise_erase(pixels, mixture, box, rng, config)


def augment(
    images: Pixels,
    labels: Labels,
    rng: CounterRng,
    config: Augmentation,
    num_classes: int,
) -> tuple[Images, Float[Tensor, "batch classes"]]:
    """`augment_images` with mixup and cutmix, and the soft targets of the labels.

    Meant to be compiled as a whole, `torch.compile(augment, fullgraph=True)`, once per
    config: shapes do not depend on the draws and nothing waits for the host.
    """
    targets = soft_targets(labels, num_classes, config.smoothing)
    return augment_with_targets(images, targets, rng, config)


def augment_with_targets(
    images: Pixels,
    targets: Float[Tensor, "batch classes"],
    rng: CounterRng,
    config: Augmentation,
) -> tuple[Images, Float[Tensor, "batch classes"]]:
    """`augment_images` with mixup and cutmix, which mix the targets too."""
    mixture = None
    if config.mixup > 0 or config.cutmix > 0:
        group = config.mix_group_for(len(images))
        height, width = images.shape[2:]
        mixture = draw_mixture(
            rng,
            height,
            width,
            config.mixup,
            config.cutmix,
            config.mix_probability,
            config.mix_switch,
            config.mix_mode,
            group,
            config.cutmix_even,
        )
        targets = mix_targets(targets, mixture, group)
    return augment_images(images, rng, config, mixture), targets
