"""Erasing, mixing and soft targets against timm on the same draws."""

import math
import random

import numpy as np
import pytest
import torch
from timm.data import mixup as timm_mixup
from timm.data.random_erasing import RandomErasing

from t2t.data.augment.config import Augmentation
from t2t.data.augment.erase import draw_erase_box, erase
from t2t.data.augment.mix import (
    draw_mixture,
    mix_images,
    mix_targets,
    partner,
    soft_targets,
)
from t2t.data.rng import CounterRng
from t2t.errors import UserError

HEIGHT, WIDTH = 24, 40


def draws_of(num: int, step: int = 0) -> CounterRng:
    return CounterRng.of(11, step, torch.arange(num))


def boxes(num: int, probability: float = 1.0, aspect: float = 0.3):
    return draw_erase_box(
        draws_of(num), HEIGHT, WIDTH, probability, (0.02, 1 / 3), aspect
    )


def test_erasing_equals_timms_on_the_same_draw(monkeypatch):
    num = 200
    rng, images = draws_of(num), torch.ones(num, 3, HEIGHT, WIDTH)
    result = erase(images, boxes(num, probability=0.5), rng, "constant")
    drawn = rng.uniform("erase", 23)
    area = 0.02 + (1 / 3 - 0.02) * drawn[:, :10]
    ratio = math.log(0.3) * (1 - 2 * drawn[:, 10:20])
    theirs = RandomErasing(probability=0.5, mode="const", device="cpu")
    num_erased = 0
    for number in range(num):
        pairs = torch.stack([area[number], ratio[number]], 1).flatten().tolist()
        monkeypatch.setattr(random, "random", lambda n=number: drawn[n, 22].item())
        monkeypatch.setattr(random, "uniform", lambda low, high, p=pairs: p.pop(0))
        places = iter(drawn[number, 20:22].tolist())
        monkeypatch.setattr(
            random,
            "randint",
            lambda low, high, p=places: int(next(p) * (high + 1)),
        )
        expected = theirs(images[number].clone())
        num_erased += not torch.equal(expected, images[number])
        assert torch.equal(result[number], expected)
    assert 80 < num_erased < 120


def test_erased_boxes_have_the_asked_frequency_area_and_aspect():
    top, bottom, left, right = boxes(20000, probability=0.25).double().unbind(1)
    area = (bottom - top) * (right - left) / (HEIGHT * WIDTH)
    erased = area > 0
    assert abs(erased.double().mean() - 0.25) < 0.015
    assert area[erased].min() > 0.01
    assert area.max() < 0.37
    assert (bottom <= HEIGHT).all()
    assert (right <= WIDTH).all()
    # Every border is reached: no place is left out.
    assert top[erased].min() == 0
    assert bottom.max() == HEIGHT
    assert left[erased].min() == 0
    assert right.max() == WIDTH
    assert not boxes(100, probability=0.0).any()


def test_erasing_with_noise_leaves_the_rest():
    images = torch.full((200, 3, HEIGHT, WIDTH), 7.0)
    erased = erase(images, boxes(200), draws_of(200), "noise")
    noise = erased[erased != 7.0]
    assert 0.1 < noise.numel() / erased.numel() < 0.25
    assert abs(noise.mean()) < 0.02
    assert abs(noise.std() - 1) < 0.02
    inside = (erased != 7.0).all(1)
    assert torch.equal(inside, (erased != 7.0).any(1))


def test_soft_targets_equal_timms():
    labels = torch.tensor([0, 3, 9, 3])
    expected = timm_mixup.one_hot(labels, 10, on_value=0.91, off_value=0.01)
    torch.testing.assert_close(soft_targets(labels, 10, 0.1), expected)
    assert torch.equal(
        soft_targets(labels, 10), torch.nn.functional.one_hot(labels, 10).float()
    )


def mixture_of(num: int, step: int, **settings):
    return draw_mixture(draws_of(num, step), HEIGHT, WIDTH, **settings)


@pytest.mark.parametrize("mode", ["batch", "sample"])
@pytest.mark.parametrize("is_cutmix", [False, True])
def test_mixing_equals_timms_on_the_same_draw(mode, is_cutmix, monkeypatch):
    num = 6
    images = torch.rand(num, 3, HEIGHT, WIDTH)
    labels = torch.randint(0, 10, (num,))
    alphas = {"mixup": 0.0 if is_cutmix else 0.8, "cutmix": float(is_cutmix)}
    for step in range(8):
        rng = draws_of(num, step)
        mixture = draw_mixture(rng, HEIGHT, WIDTH, **alphas, mode=mode)
        targets = mix_targets(soft_targets(labels, 10, 0.1), mixture)
        source = rng.shared() if mode == "batch" else rng
        kept = source.beta("mix.kept", 1.0 if is_cutmix else 0.8)
        places = source.uniform("mix", 4)[:, :2] * torch.tensor([HEIGHT, WIDTH])
        order = iter(places.long().flatten().tolist())
        monkeypatch.setattr(
            np.random, "beta", lambda *a, size=None, k=kept: k[:, 0].numpy()
        )
        monkeypatch.setattr(
            np.random, "randint", lambda *a, size=None, o=order: next(o)
        )
        if mode == "batch":
            monkeypatch.setattr(np.random, "beta", lambda *a, k=kept: k.item())
        theirs = timm_mixup.Mixup(
            mixup_alpha=alphas["mixup"],
            cutmix_alpha=alphas["cutmix"],
            mode="batch" if mode == "batch" else "elem",
            label_smoothing=0.1,
            num_classes=10,
        )
        expected, expected_targets = theirs(images.clone(), labels)
        torch.testing.assert_close(mix_images(images, mixture), expected)
        torch.testing.assert_close(targets, expected_targets)


def test_half_of_the_batches_are_cut_and_all_are_mixed():
    mixture = mixture_of(4000, 0, mixup=0.8, cutmix=1.0, mode="sample")
    pixels = mixture.pixels(HEIGHT, WIDTH)
    is_cut = ((pixels == 0) | (pixels == 1)).all((1, 2, 3))
    assert abs(is_cut.float().mean() - 0.5) < 0.04
    # A cut keeps of the label what it keeps of the pixels.
    kept = pixels.mean((1, 2, 3))
    torch.testing.assert_close(mixture.label[:, 0], kept, atol=1e-5, rtol=0)
    alone = draws_of(4000).beta("mix.kept", 0.8)
    torch.testing.assert_close(mixture.label[~is_cut], alone[~is_cut])
    some = mixture_of(4000, 0, mixup=0.8, cutmix=0.0, probability=0.3, mode="sample")
    assert abs((some.label < 1).float().mean() - 0.3) < 0.04
    for step in range(4):
        whole = mixture_of(5, step, mixup=0.8, cutmix=1.0)
        assert whole.label.shape == (1, 1)
        assert whole.pixels(HEIGHT, WIDTH).shape == (1, 1, HEIGHT, WIDTH)


def test_a_group_draws_its_own_mixture_wherever_it_is():
    """As a GPU's batch does by itself, whichever process holds the group."""
    settings = {"mixup": 0.8, "cutmix": 1.0, "group": 64}
    whole = mixture_of(512, 3, **settings)
    groups = whole.label.unflatten(0, (8, 64))
    assert (groups == groups[:, :1]).all()
    assert len(set(groups[:, 0, 0].tolist())) == 8
    second = CounterRng.of(11, 3, torch.arange(64, 128))
    alone = draw_mixture(second, HEIGHT, WIDTH, **settings)
    for part, expected in zip(alone, whole, strict=True):
        assert torch.equal(part, expected[64:128])
    cuts = [mixture_of(512, step, **settings).cut[::64] for step in range(100)]
    is_cut = (torch.stack(cuts)[..., 1] > 0).float()
    assert abs(is_cut.mean() - 0.5) < 0.06


def test_even_boxes_are_those_of_the_published_recipe():
    """timm 0.3.4: half of the side, rounded down, to either side of the centre."""
    rng = draws_of(2000)
    settings = {"mixup": 0.0, "cutmix": 1.0, "mode": "sample", "even": True}
    mixture = draw_mixture(rng, HEIGHT, WIDTH, **settings)
    side = (1 - rng.beta("mix.kept", 1.0)[:, 0].numpy()) ** 0.5
    places = rng.uniform("mix", 4)[:, :2].numpy()
    expected = []
    for axis, size in enumerate((HEIGHT, WIDTH)):
        half = (size * side).astype(int) // 2
        centre = (size * places[:, axis]).astype(int)
        expected += [np.clip(centre - half, 0, size), np.clip(centre + half, 0, size)]
    assert np.array_equal(mixture.cut.numpy(), np.stack(expected, 1))
    top, bottom, left, right = expected
    area = (bottom - top) * (right - left) / (HEIGHT * WIDTH)
    assert np.allclose(mixture.label[:, 0].numpy(), 1 - area)


def test_partners_within_groups_do_not_depend_on_the_division():
    samples = torch.arange(12)
    assert partner(samples).tolist() == samples.tolist()[::-1]
    whole = partner(samples, 2)
    assert whole.tolist() == [1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10]
    parts = [partner(part, 2) for part in samples.chunk(3)]
    assert torch.equal(torch.cat(parts), whole)


def test_groups_that_do_not_divide_a_process_are_refused():
    settings = Augmentation(mixup=0.8, mix_group=64)
    assert [settings.mix_group_for(num) for num in (512, 64, 32)] == [64, 64, 32]
    assert Augmentation(mix_group=64).mix_group_for(100) is None
    assert Augmentation(mixup=0.8).mix_group_for(100) is None
    with pytest.raises(UserError, match=r"100 images per process .* groups of 64; set"):
        settings.mix_group_for(100)
