"""Flips, padded crops and affine maps against torchvision and PIL."""

import pytest
import torch
import torchvision.transforms.functional as TF
from PIL import Image
from timm.data import auto_augment as timm_ops

from t2t.data.augment import geometry
from t2t.errors import UserError


def pictures(num: int = 8, size: tuple[int, int] = (40, 32), channels: int = 3):
    generator = torch.Generator().manual_seed(1)
    coarse = torch.rand(num, channels, 6, 6, generator=generator)
    images = torch.nn.functional.interpolate(coarse, size, mode="bicubic")
    noise = torch.randn(images.shape, generator=generator)
    return ((images + 0.05 * noise) * 255).clamp(0, 255).to(torch.uint8)


def matrix_of(terms, values):
    chosen = torch.full(values.shape, True)
    return geometry.choose_matrix([(chosen, terms(values, 40, 32))], values)


def test_flip():
    images = pictures()
    chosen = torch.arange(8) % 3 == 0
    flipped = geometry.flip(images, chosen)
    for image, result, is_chosen in zip(images, flipped, chosen, strict=True):
        assert torch.equal(result, TF.hflip(image) if is_chosen else image)


@pytest.mark.parametrize(("fill", "mode"), [("zero", "constant"), ("reflect",) * 2])
def test_padded_crop(fill, mode):
    images = pictures()
    top, left = torch.tensor([0, 8, 4, 1, 2, 3, 5, 7]), torch.arange(8)
    result = geometry.padded_crop(images, top, left, 4, fill)
    for number, image in enumerate(images):
        padded = TF.pad(image, 4, padding_mode=mode)
        expected = TF.crop(padded, int(top[number]), int(left[number]), 40, 32)
        assert torch.equal(result[number], expected)


def test_reflection_needs_pixels_to_reflect():
    images, offset = pictures(size=(4, 9)), torch.zeros(8, dtype=torch.int64)
    with pytest.raises(UserError, match="Reflecting 4 pixels needs larger images"):
        geometry.padded_crop(images, offset, offset, 4, "reflect")


@pytest.mark.parametrize("is_cubic", [False, True])
@pytest.mark.parametrize(
    ("terms", "reference", "largest"),
    [
        (geometry.shear_x_terms, timm_ops.shear_x, 0.3),
        (geometry.shear_y_terms, timm_ops.shear_y, 0.3),
        (geometry.translate_x_terms, timm_ops.translate_x_rel, 0.45),
        (geometry.translate_y_terms, timm_ops.translate_y_rel, 0.45),
        (geometry.rotate_terms, timm_ops.rotate, 30.0),
    ],
)
def test_affine_is_pils_to_one_level(terms, reference, largest, is_cubic):
    images, fill = pictures(), (124, 116, 104)
    unit = torch.rand(8, generator=torch.Generator().manual_seed(7))
    values = largest * (2 * unit - 1)
    result = geometry.affine(
        images,
        matrix_of(terms, values),
        fill,
        torch.full((8,), True) if is_cubic else None,
    )
    resample = Image.Resampling.BICUBIC if is_cubic else Image.Resampling.BILINEAR
    expected = torch.stack(
        [
            TF.pil_to_tensor(
                reference(
                    TF.to_pil_image(image),
                    values[number].item(),
                    resample=resample,
                    fillcolor=fill,
                )
            )
            for number, image in enumerate(images)
        ]
    )
    difference = (result.int() - expected.int()).abs()
    assert difference.max() <= 1
    assert (difference > 0).float().mean() < 1e-3  # where a truncation falls


def test_interpolation_is_chosen_per_sample():
    images = pictures()
    matrix = matrix_of(geometry.rotate_terms, torch.linspace(-20, 20, 8))
    chosen = torch.arange(8) % 2 == 0
    mixed = geometry.affine(images, matrix, (0, 0, 0), chosen)
    linear = geometry.affine(images, matrix, (0, 0, 0))
    cubic = geometry.affine(images, matrix, (0, 0, 0), torch.full((8,), True))
    assert torch.equal(mixed[chosen], cubic[chosen])
    assert torch.equal(mixed[~chosen], linear[~chosen])
    assert not torch.equal(linear, cubic)


def test_moving_nothing_changes_nothing():
    images = pictures()
    still = matrix_of(geometry.rotate_terms, torch.zeros(8))
    for is_cubic in (None, torch.full((8,), True)):
        assert torch.equal(geometry.affine(images, still, (9, 9, 9), is_cubic), images)


def test_fill_needs_one_level_per_channel():
    matrix = matrix_of(geometry.rotate_terms, torch.zeros(8))
    with pytest.raises(UserError, match="3 values per channel were given"):
        geometry.affine(pictures(channels=1), matrix, (1, 2, 3))
