"""Colour operations equal PIL's, sample by sample."""

import random

import numpy as np
import pytest
import torch
import torchvision.transforms.functional as TF
from PIL import Image, ImageEnhance, ImageFilter, ImageOps
from timm.data import auto_augment as timm_ops
from torch import Tensor

from t2t.data.augment.apply import apply_chosen
from t2t.data.augment.tables import auto_contrast_table
from t2t.errors import UserError


def pictures(num: int = 12, size: tuple[int, int] = (19, 23), channels: int = 3):
    """Smooth shapes with noise, of different brightness and range; some degenerate."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(num, channels, 4, 4, generator=generator)
    images = torch.nn.functional.interpolate(coarse, size, mode="bicubic")
    images = images + 0.1 * torch.randn(images.shape, generator=generator)
    low, high = torch.rand(2, num, channels, 1, 1, generator=generator)
    images = ((low + (high - low) * images) * 255).clamp(0, 255).to(torch.uint8)
    images[0] = 77  # one level
    images[1, 0] = images[1, 0] // 128 * 255  # two levels
    images[2] = torch.randint(0, 256, images[2].shape, generator=generator)
    return images


def applied(name: str, images: Tensor, values: Tensor | None = None) -> Tensor:
    """Every sample through one operation."""
    chosen = torch.zeros(len(images), dtype=torch.int64)
    return apply_chosen(
        images, (name,), chosen, chosen.float() if values is None else values
    )


def to_pil(image: Tensor) -> Image.Image:
    array = image.permute(1, 2, 0).numpy()
    return Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array)


def from_pil(image: Image.Image) -> Tensor:
    array = torch.from_numpy(np.array(image))
    return array[None] if array.ndim == 2 else array.permute(2, 0, 1)


def assert_each_equals(result: Tensor, images: Tensor, expected) -> None:
    """Every sample of the result is what PIL makes of that image."""
    for number, image in enumerate(images):
        wanted = from_pil(expected(to_pil(image), number))
        assert torch.equal(result[number], wanted), number


FACTORS = torch.tensor([0.0, 0.1, 0.19, 0.5, 0.9, 1.0, 1.1, 1.43, 1.5, 1.81, 1.9, 2.5])


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    ("operation", "enhancer"),
    [
        ("brightness", ImageEnhance.Brightness),
        ("contrast", ImageEnhance.Contrast),
        ("saturation", ImageEnhance.Color),
        ("sharpness", ImageEnhance.Sharpness),
    ],
)
def test_enhancing_is_exact(operation, enhancer, channels):
    images = pictures(channels=channels)
    assert_each_equals(
        applied(operation, images, FACTORS),
        images,
        lambda image, number: enhancer(image).enhance(FACTORS[number].item()),
    )


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    ("operation", "reference", "values"),
    [
        ("posterize", timm_ops.posterize, [1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4]),
        (
            "solarize",
            ImageOps.solarize,
            [0, 1, 26, 64, 100, 127, 128, 129, 200, 254, 255, 256],
        ),
        (
            "solarize_add",
            timm_ops.solarize_add,
            [0, 1, 10, 50, 99, 110, 120, 127, 128, 3, 40, 77],
        ),
    ],
)
def test_level_operations_are_exact(operation, reference, values, channels):
    images = pictures(channels=channels)
    assert_each_equals(
        applied(operation, images, torch.tensor(values).float()),
        images,
        lambda image, number: reference(image, values[number]),
    )


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    ("operation", "reference"),
    [
        ("invert", ImageOps.invert),
        ("auto_contrast", ImageOps.autocontrast),
        ("equalize", ImageOps.equalize),
    ],
)
@pytest.mark.parametrize("size", [(3, 5), (19, 23), (64, 64)])
def test_whole_image_operations_are_exact(operation, reference, channels, size):
    images = pictures(size=size, channels=channels)
    assert_each_equals(
        applied(operation, images), images, lambda image, number: reference(image)
    )


def test_posterize_to_no_bits_is_black():
    # Newer PIL refuses it, but RandAugment's largest magnitude means it.
    assert not applied("posterize", pictures()).any()


def test_auto_contrast_has_pils_rounding_for_every_range():
    generator = random.Random(0)
    pairs = [sorted(generator.sample(range(256), 2)) for _ in range(2000)]
    counts = torch.zeros(len(pairs), 1, 256, dtype=torch.int32)
    for number, (low, high) in enumerate(pairs):
        counts[number, 0, [low, high]] = 1
    tables = auto_contrast_table(counts)[:, 0]
    for table, (low, high) in zip(tables, pairs, strict=True):
        scale = 255.0 / (high - low)
        for level in (low, (low + high) // 2, high):
            assert table[level] == min(255, max(0, int(level * scale - low * scale)))


def test_grayscale_is_exact():
    images = pictures()
    assert_each_equals(
        applied("grayscale", images),
        images,
        lambda image, number: image.convert("L").convert("RGB"),
    )
    grey = pictures(channels=1)
    assert torch.equal(applied("grayscale", grey), grey)


def test_hue_is_exact():
    images = pictures(size=(40, 40))
    turns = torch.linspace(-0.5, 0.5, len(images))
    assert_each_equals(
        applied("hue", images, turns),
        images,
        lambda image, number: TF.adjust_hue(image, turns[number].item()),
    )
    grey = pictures(channels=1)
    assert torch.equal(applied("hue", grey, turns), grey)


@pytest.mark.parametrize("size", [(5, 3), (40, 36)])
def test_gaussian_blur_is_exact(size):
    images = pictures(size=size)
    sigma = torch.linspace(0.1, 2.0, len(images))
    assert_each_equals(
        applied("gaussian_blur", images, sigma),
        images,
        lambda image, number: image.filter(
            ImageFilter.GaussianBlur(sigma[number].item())
        ),
    )


@pytest.mark.parametrize("operation", ["contrast", "saturation"])
def test_two_channels_have_no_luma(operation):
    with pytest.raises(UserError, match="1 or 3 channels, not 2"):
        applied(operation, pictures(channels=2), FACTORS)
