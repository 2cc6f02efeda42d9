"""RandAugment, three-augment and colour jitter against timm and torchvision."""

import random

import pytest
import torch
import torchvision.transforms.functional as TF
from PIL import Image, ImageEnhance, ImageFilter, ImageOps
from timm.data import auto_augment as timm_ops

from t2t.data.augment.apply import apply_chosen, apply_torch
from t2t.data.augment.config import RAND_AUGMENT_OPERATIONS, Augmentation
from t2t.data.augment.operations import OPERATIONS
from t2t.data.augment.policies import (
    RandAugment,
    colour_jitter,
    grayscale_blur_solarize,
    three_augment,
)
from t2t.data.rng import CounterRng
from t2t.errors import UserError

PUBLISHED = "rand-m9-mstd0.5-inc1"
FILL = (124, 116, 104)
MOVING = {"rotate", "shear_x", "shear_y", "translate_x", "translate_y"}


def pictures(num: int, size: tuple[int, int] = (36, 32)):
    generator = torch.Generator().manual_seed(2)
    coarse = torch.rand(num, 3, 5, 5, generator=generator)
    images = torch.nn.functional.interpolate(coarse, size, mode="bicubic")
    noise = torch.randn(images.shape, generator=generator)
    return ((images + 0.05 * noise) * 255).clamp(0, 255).to(torch.uint8)


def timm_names(text: str) -> list[str]:
    return [op.name for op in timm_ops.rand_augment_transform(text, {}).ops]


def test_settings_are_parsed_as_timm_does():
    ours = RandAugment.parse(PUBLISHED)
    theirs = timm_ops.rand_augment_transform(PUBLISHED, {})
    operation = theirs.ops[0]
    assert len(theirs.ops) == len(RAND_AUGMENT_OPERATIONS) == 15
    assert set(RAND_AUGMENT_OPERATIONS) <= set(OPERATIONS)
    assert ours.num_operations == theirs.num_layers == 2
    assert ours.magnitude == operation.magnitude == 9
    assert ours.magnitude_std == operation.magnitude_std == 0.5
    assert ours.probability == operation.prob == 0.5
    assert ours.increasing
    other = RandAugment.parse("rand-n3-m7-p0.9-mmax15")
    assert other == RandAugment(
        num_operations=3, magnitude=7, probability=0.9, magnitude_max=15
    )
    assert RandAugment.parse("rand") == RandAugment.parse("rand-mmax0") == RandAugment()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("augmix-m3", "is written rand-"),
        ("", "is written rand-"),
        ("rand-m9-mstd", "not a letter key and a number"),
        ("rand-m9-tweights", "not a letter key and a number"),
        ("rand-m9-msd0.5", "Did you mean mstd"),
        ("rand-m9-m8", "is given twice"),
        ("rand-n2.5", "needs a whole number"),
        ("rand-p1.5", "from 0 to 1"),
        ("rand-inc2", "either 0 or 1"),
    ],
)
def test_malformed_settings_are_refused(text, message):
    with pytest.raises(UserError, match=message):
        RandAugment.parse(text)


@pytest.mark.parametrize("increasing", [0, 1])
@pytest.mark.parametrize("is_negative", [False, True])
def test_levels_mean_what_timms_mean(increasing, is_negative, monkeypatch):
    text = f"rand-m9-inc{increasing}"
    monkeypatch.setattr(random, "random", lambda: 0.9 if is_negative else 0.1)
    for number, name in enumerate(timm_names(text)):
        level_function = timm_ops.LEVEL_TO_ARG[name]
        if level_function is None:
            continue
        for magnitude in [0, 1, 2, 3, 4, 5, 6, 7, 8, 8.77, 9, 9.5, 10]:
            ours = RandAugment.parse(text).values(
                torch.tensor([number]),
                torch.tensor([float(magnitude)]),
                torch.tensor([is_negative]),
            )
            expected = level_function(magnitude, {})[0]
            assert ours.item() == pytest.approx(expected, abs=1e-5), (name, magnitude)


def test_images_equal_timms_on_the_same_draw():
    num = 300
    images, rng = pictures(num), CounterRng.of(0, 0, torch.arange(num))
    policy = RandAugment.parse(PUBLISHED)
    result = policy(images, rng, FILL)
    layers = policy.draw(rng)
    names, seen = timm_names(PUBLISHED), set()
    for number, image in enumerate(images):
        picture, applied = TF.to_pil_image(image), []
        for layer in layers:
            choice = int(layer.choice[number])
            if choice < 0:
                continue
            name = RAND_AUGMENT_OPERATIONS[choice]
            value = layer.value[number].item()
            cubic = bool(layer.is_cubic[number])
            argument: tuple[float, ...] = (value,)
            if name in ("auto_contrast", "equalize", "invert"):
                argument = ()
            elif name in ("posterize", "solarize", "solarize_add"):
                argument = (int(value),)
            applied.append(name)
            if name == "posterize" and value == 0:
                picture = Image.new("RGB", picture.size)
                continue
            picture = timm_ops.NAME_TO_OP[names[choice]](
                picture,
                *argument,
                fillcolor=FILL,
                resample=Image.Resampling.BICUBIC
                if cubic
                else Image.Resampling.BILINEAR,
            )
        seen |= set(applied)
        difference = (result[number].int() - TF.pil_to_tensor(picture).int()).abs()
        if applied and applied[-1] in MOVING and not MOVING & set(applied[:-1]):
            assert difference.max() <= 1, applied
        elif not MOVING & set(applied):
            assert difference.max() == 0, applied
        else:  # a later operation may widen the one level of an earlier resampling
            assert (difference > 2).float().mean() < 0.01, applied
    assert seen == set(RAND_AUGMENT_OPERATIONS)


def test_draws_have_the_published_frequencies():
    num = 30000
    layers = RandAugment.parse(PUBLISHED).draw(CounterRng.of(1, 2, torch.arange(num)))
    assert len(layers) == 2
    for layer in layers:
        assert abs((layer.choice >= 0).float().mean() - 0.5) < 0.015
        counts = layer.choice[layer.choice >= 0].bincount(minlength=15) / num
        assert ((counts - 0.5 / 15).abs() < 0.006).all()
        degrees = layer.value[layer.choice == 3]
        assert abs((degrees > 0).float().mean() - 0.5) < 0.08
        # Nine tenths of thirty degrees, with a spread of 1.5, cut at 30.
        assert abs(degrees.abs().mean() - 27) < 0.3
        assert degrees.abs().max() <= 30
    both = (layers[0].choice >= 0) & (layers[1].choice >= 0)
    assert abs(both.float().mean() - 0.25) < 0.015
    uniform = RandAugment.parse("rand-m8-mstd101").draw(
        CounterRng.of(1, 2, torch.arange(num))
    )
    degrees = uniform[0].value[uniform[0].choice == 3].abs() / 3
    assert abs(degrees.mean() - 4) < 0.2
    assert degrees.max() <= 8
    always = RandAugment.parse("rand-m20-p1-mmax15").draw(
        CounterRng.of(1, 2, torch.arange(num))
    )
    assert (always[0].choice >= 0).all()
    assert always[0].value[always[0].choice == 3].abs().max() == 45


def test_three_augment_on_the_same_draw():
    num = 30
    images, rng = pictures(num), CounterRng.of(3, 1, torch.arange(num))
    choice = rng.integers("three_augment.operation", 3)[:, 0].tolist()
    assert set(choice) == {0, 1, 2}
    sigma = rng.uniform("three_augment.sigma", low=0.1, high=2.0)[:, 0].tolist()
    for number, result in enumerate(three_augment(images, rng)):
        picture = TF.to_pil_image(images[number])
        expected = (
            picture.convert("L").convert("RGB"),
            ImageOps.solarize(picture),
            picture.filter(ImageFilter.GaussianBlur(sigma[number])),
        )[choice[number]]
        assert torch.equal(result, TF.pil_to_tensor(expected))


@pytest.mark.parametrize(
    "strength", [(0.4, 0.4, 0.4, 0.0), (0.3, 0.2, 1.5, 0.5), (0.0, 0.7, 0.0, 0.1)]
)
def test_colour_jitter_on_the_same_draw(strength):
    num = 40
    images, rng = pictures(num), CounterRng.of(3, 1, torch.arange(num))
    unit = rng.uniform("colour_jitter.factor", 4)
    low = torch.tensor([max(0.0, 1 - each) for each in strength[:3]] + [-strength[3]])
    high = torch.tensor([1 + each for each in strength[:3]] + [strength[3]])
    factors = low + (high - low) * unit
    active = [number for number in range(4) if strength[number] > 0]
    order = rng.permutation("colour_jitter.order", len(active))
    differing = 0
    for number, result in enumerate(colour_jitter(images, rng, strength)):
        picture = TF.to_pil_image(images[number])
        for position in order[number].tolist():
            factor = factors[number, active[position]].item()
            if active[position] == 3:
                picture = TF.adjust_hue(picture, factor)
                continue
            enhancer = (
                ImageEnhance.Brightness,
                ImageEnhance.Contrast,
                ImageEnhance.Color,
            )[active[position]]
            picture = enhancer(picture).enhance(factor)
        differing += not torch.equal(result, TF.pil_to_tensor(picture))
    # A factor may round differently in its last bit, and one level then by one.
    assert differing <= 1


def test_a_cpu_and_a_device_compute_the_same():
    num = 150
    images, rng = pictures(num), CounterRng.of(0, 1, torch.arange(num))
    for layer in RandAugment.parse(PUBLISHED).draw(rng):
        given = (layer.choice, layer.value, FILL, layer.is_cubic)
        assert torch.equal(
            apply_chosen(images, RAND_AUGMENT_OPERATIONS, *given),
            apply_torch(images, RAND_AUGMENT_OPERATIONS, *given),
        )
    others = ("grayscale", "gaussian_blur", "hue", "contrast")
    choice = rng.integers("choice", 5)[:, 0]
    value = rng.uniform("value")[:, 0] - 0.5
    value = torch.where(choice == 2, value, value + 0.6)
    assert torch.equal(
        apply_chosen(images, others, choice, value),
        apply_torch(images, others, choice, value),
    )


def test_samples_without_an_operation_stay():
    images = pictures(4)
    none = torch.full((4,), -1)
    result = apply_chosen(
        images, RAND_AUGMENT_OPERATIONS, none, torch.zeros(4), FILL, none > 0
    )
    assert torch.equal(result, images)


def test_colour_jitter_changes_a_share_of_the_images():
    images = pictures(400, (4, 4))
    rng = CounterRng.of(0, 0, torch.arange(len(images)))
    strength = (0.4, 0.4, 0.2, 0.1)
    always = colour_jitter(images, rng, strength)
    some = colour_jitter(images, rng, strength, 0.8)
    is_kept = (some == images).flatten(1).all(1)
    assert torch.equal(some[~is_kept], always[~is_kept])
    assert is_kept.float().mean() == pytest.approx(0.2, abs=0.05)


def test_views_are_turned_grey_blurred_and_solarized():
    images = pictures(400, (8, 8))
    rng = CounterRng.of(0, 0, torch.arange(len(images)))

    def share(view: int, **changes: object) -> tuple[torch.Tensor, float]:
        config = Augmentation(**changes)
        changed = grayscale_blur_solarize(images, rng, config, view)
        is_changed = (changed != images).flatten(1).any(1)
        return changed[is_changed], is_changed.float().mean().item()

    grey, num_grey = share(0, grayscale=(0.2,))
    assert num_grey == pytest.approx(0.2, abs=0.05)
    assert torch.equal(grey[:, 0], grey[:, 2])
    for view, expected in enumerate((1.0, 0.1, 0.5, 0.5)):
        _, num_blurred = share(view, blur=(1.0, 0.1, 0.5), blur_sigma=(1.0, 2.0))
        assert num_blurred == pytest.approx(expected, abs=0.06)
    _, num_solarized = share(0, solarize=(0.0, 0.2))
    assert num_solarized == 0
    solarized = grayscale_blur_solarize(images, rng, Augmentation(solarize=(1.0,)))
    expected = torch.where(images < 128, images, 255 - images)
    assert torch.equal(solarized, expected)
    blurred = grayscale_blur_solarize(
        images, rng, Augmentation(blur=(1.0,), blur_sigma=(1.5, 1.5))
    )
    one = Image.fromarray(images[0].permute(1, 2, 0).numpy())
    one = one.filter(ImageFilter.GaussianBlur(1.5))
    assert torch.equal(blurred[0], TF.pil_to_tensor(one))
    assert torch.equal(grayscale_blur_solarize(images, rng, Augmentation()), images)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"blur": ()}, "blur is empty"),
        ({"solarize": (0.0, 1.2)}, r"solarize\[1\]"),
        ({"jitter_probability": -1.0}, "jitter_probability"),
        ({"blur_sigma": (1.0, 3.0)}, "blur_sigma"),
    ],
)
def test_impossible_views_are_refused(changes, message):
    with pytest.raises(UserError, match=message):
        Augmentation(**changes)
