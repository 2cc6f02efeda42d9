"""All augmentation of a batch on its device: from uint8 to floats and soft targets."""

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
    three_augment,
)
from t2t.data.rng import CounterRng, stream_word
from t2t.ops import augment_triton
from t2t.shapes import Images, Labels, Pixels


def distort(images: Pixels, rng: CounterRng, settings: Augmentation) -> Pixels:
    """Each image by itself, still in uint8: crop, flip and colours."""
    offset = is_flipped = None
    padding = settings.crop_padding
    if padding:
        offset = rng.integers("crop", 2 * padding + 1, 2)
    if settings.flip:
        is_flipped = rng.bernoulli("flip", settings.flip)[:, 0]
    if padding or settings.flip:
        images = crop_and_flip(images, offset, is_flipped, padding, settings.crop_fill)
    if settings.rand_augment is not None:
        images = RandAugment.parse(settings.rand_augment)(
            images, rng, settings.fill, settings.interpolation
        )
    if settings.three_augment:
        images = three_augment(images, rng)
    return colour_jitter(images, rng, settings.colour_jitter)


def scale_and_shift(
    images: Tensor, mean: tuple[float, ...], std: tuple[float, ...]
) -> tuple[Float[Tensor, "channels 1 1"], Float[Tensor, "channels 1 1"]]:
    """What levels are multiplied by, then moved by, to have mean 0 and spread 1."""
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
    """Levels 0 to 255 as numbers of mean 0 and spread 1, in training and evaluation."""
    scale, shift = scale_and_shift(images, mean, std)
    return images.float() * scale + shift


def finish_plainly(
    pixels: Pixels,
    mixture: Mixture | None,
    box: Int64[Tensor, "batch 4"] | None,
    rng: CounterRng,
    settings: Augmentation,
) -> Images:
    """Mixes, normalises and erases, each where there is something to do."""
    levels = pixels.float()
    if mixture is not None:
        levels = mix_images(levels, mixture, settings.mix_group_for(len(pixels)))
    floats = normalise(levels, settings.mean, settings.std)
    if box is not None:
        floats = erase(floats, box, rng, settings.erase_fill)
    return floats


def finish_by_kernel(
    pixels: Pixels,
    mixture: Mixture | None,
    box: Int64[Tensor, "batch 4"] | None,
    rng: CounterRng,
    settings: Augmentation,
) -> Images:
    """`finish_plainly` in one pass."""
    kept = cut = None
    if mixture is not None:
        kept, cut = mixture.kept, mixture.cut
    is_noisy = box is not None and settings.erase_fill == "noise"
    floats: Images = augment_triton.mix_normalise_erase(
        pixels,
        kept,
        cut,
        settings.mix_group_for(len(pixels)) or len(pixels),
        *scale_and_shift(pixels, settings.mean, settings.std),
        box,
        rng.keys if is_noisy else None,
        stream_word(NOISE_STREAM),
    )
    return floats


def augment(
    images: Pixels,
    labels: Labels,
    rng: CounterRng,
    settings: Augmentation,
    num_classes: int,
) -> tuple[Images, Float[Tensor, "batch classes"]]:
    """Images to train on, normalised, and their soft targets.

    Meant to be compiled as a whole, `torch.compile(augment, fullgraph=True)`, once per
    settings: shapes do not depend on the draws and nothing waits for the host.
    """
    height, width = images.shape[2:]
    pixels = distort(images, rng, settings)
    targets = soft_targets(labels, num_classes, settings.smoothing)
    mixture = box = None
    group = settings.mix_group_for(len(images))
    if settings.mixup > 0 or settings.cutmix > 0:
        mixture = draw_mixture(
            rng,
            height,
            width,
            settings.mixup,
            settings.cutmix,
            settings.mix_probability,
            settings.mix_switch,
            settings.mix_mode,
            group,
            settings.cutmix_even,
        )
        targets = mix_targets(targets, mixture, group)
    if settings.erase > 0:
        box = draw_erase_box(
            rng,
            height,
            width,
            settings.erase,
            settings.erase_area,
            settings.erase_aspect,
        )
    by_kernel = augment_triton.has_kernel(pixels)
    finish = finish_by_kernel if by_kernel else finish_plainly
    return finish(pixels, mixture, box, rng, settings), targets
