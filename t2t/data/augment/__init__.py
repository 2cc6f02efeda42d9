"""Augmentation of uint8 batches on their device, drawn per sample.

Operations take images and one parameter per sample; `Augmentation` holds the settings
of a recipe and `augment` applies them all.
"""

from t2t.data.augment.blur import gaussian_blur
from t2t.data.augment.choice import OPERATIONS, apply_chosen
from t2t.data.augment.colour import grayscale, hue, luma, saturation, sharpness
from t2t.data.augment.erase import draw_erase_box, erase
from t2t.data.augment.geometry import affine, flip, padded_crop
from t2t.data.augment.mix import (
    Mixture,
    draw_mixture,
    mix_images,
    mix_targets,
    soft_targets,
)
from t2t.data.augment.pipeline import (
    augment,
    distort,
    normalise,
    preview,
)
from t2t.data.augment.policies import RandAugment, colour_jitter, three_augment
from t2t.data.augment.tables import (
    auto_contrast,
    brightness,
    contrast,
    equalize,
    invert,
    posterize,
    solarize,
    solarize_add,
)
from t2t.data.augmentation import Augmentation

__all__ = [
    "OPERATIONS",
    "Augmentation",
    "Mixture",
    "RandAugment",
    "affine",
    "apply_chosen",
    "augment",
    "auto_contrast",
    "brightness",
    "colour_jitter",
    "contrast",
    "distort",
    "draw_erase_box",
    "draw_mixture",
    "equalize",
    "erase",
    "flip",
    "gaussian_blur",
    "grayscale",
    "hue",
    "invert",
    "luma",
    "mix_images",
    "mix_targets",
    "normalise",
    "padded_crop",
    "posterize",
    "preview",
    "saturation",
    "sharpness",
    "soft_targets",
    "solarize",
    "solarize_add",
    "three_augment",
]
