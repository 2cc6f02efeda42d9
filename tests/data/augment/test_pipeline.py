"""The whole augmentation: order, invariance, settings and compilation."""

import dataclasses

import pytest
import torch
import torchvision.transforms.functional as TF

from t2t.data.augment.config import Augmentation
from t2t.data.augment.pipeline import augment, augment_images, distort, normalise
from t2t.data.rng import CounterRng
from t2t.errors import UserError
from t2t.recipes.imagenet import AUGMENTATION as PUBLISHED

EVERYTHING = dataclasses.replace(
    PUBLISHED,
    crop_padding=4,
    crop_fill="reflect",
    three_augment=True,
    colour_jitter=(0.3, 0.3, 0.3, 0.1),
    mix_mode="sample",
    mix_group=2,
)


def batch(num: int = 16, size: int = 20, channels: int = 3):
    generator = torch.Generator().manual_seed(5)
    coarse = torch.rand(num, channels, 5, 5, generator=generator)
    images = torch.nn.functional.interpolate(coarse, size, mode="bilinear")
    labels = torch.randint(0, 10, (num,), generator=generator)
    return (images * 255).to(torch.uint8), labels


def test_nothing_is_on_by_default():
    images, labels = batch()
    floats, targets = augment(
        images, labels, CounterRng.of(0, 0, torch.arange(16)), Augmentation(), 10
    )
    settings = Augmentation()
    expected = TF.normalize(images / 255, settings.mean, settings.std)
    torch.testing.assert_close(floats, expected)
    assert torch.equal(floats, normalise(images, settings.mean, settings.std))
    assert torch.equal(targets.argmax(1), labels)
    assert targets.max() == 1
    assert targets.sum() == 16


def test_a_padded_crop_lies_at_every_place():
    image = torch.arange(1, 10, dtype=torch.uint8).view(1, 1, 3, 3)
    settings = Augmentation(crop_padding=1)
    crops = distort(
        image.repeat(200, 1, 1, 1), CounterRng.of(0, 0, torch.arange(200)), settings
    )
    windows = torch.nn.functional.pad(image, (1,) * 4).unfold(2, 3, 1).unfold(3, 3, 1)
    expected = {tuple(each.tolist()) for each in windows.reshape(9, 9)}
    assert {tuple(each.tolist()) for each in crops.flatten(1)} == expected


def test_light_augmentation_only_crops_and_flips():
    light_augment = Augmentation(crop_padding=4, crop_fill="reflect", flip=0.5)
    kept = {"smoothing", "mix_mode", "mix_group", "interpolation", "erase_fill"}
    for field in dataclasses.fields(Augmentation):
        if field.name not in kept:
            found = getattr(EVERYTHING.light(), field.name)
            assert found == getattr(light_augment, field.name), field.name


@pytest.mark.parametrize("settings", [PUBLISHED, EVERYTHING])
def test_everything_together(settings):
    images, labels = batch()
    before = images.clone()
    floats, targets = augment(
        images, labels, CounterRng.of(0, 3, torch.arange(16)), settings, 10
    )
    assert floats.dtype == torch.float32
    assert floats.shape == images.shape
    assert torch.isfinite(floats).all()
    torch.testing.assert_close(targets.sum(1), torch.ones(16))
    assert (targets >= 0.0099).all()
    assert torch.equal(images, before)


def test_a_sample_is_the_same_in_any_batch():
    images, labels = batch()
    rng = CounterRng.of(4, 9, torch.arange(100, 116))
    whole, whole_targets = augment(images, labels, rng, EVERYTHING, 10)
    for start in (0, 6):
        part = slice(start, start + 4)
        some = CounterRng.of(4, torch.tensor(9), torch.arange(100, 116)[part])
        floats, targets = augment(images[part], labels[part], some, EVERYTHING, 10)
        assert torch.equal(floats, whole[part])
        assert torch.equal(targets, whole_targets[part])
    again, _ = augment(images, labels, rng, EVERYTHING, 10)
    assert torch.equal(again, whole)
    other, _ = augment(
        images, labels, CounterRng.of(4, 10, torch.arange(100, 116)), EVERYTHING, 10
    )
    assert not torch.equal(other, whole)


def test_grey_images():
    images, labels = batch(channels=1)
    settings = dataclasses.replace(EVERYTHING, mean=(0.5,), std=(0.25,))
    rng = CounterRng.of(0, 1, torch.arange(16))
    floats, _ = augment(images, labels, rng, settings, 10)
    assert floats.shape == images.shape
    with pytest.raises(UserError, match="need one value per channel"):
        augment(images, labels, rng, EVERYTHING, 10)


def test_two_channels_take_what_needs_no_colour():
    images, labels = batch(channels=2)
    settings = Augmentation(
        flip=0.5, crop_padding=2, mixup=1.0, erase=1.0, mean=(0.5,) * 2, std=(0.2,) * 2
    )
    rng = CounterRng.of(0, 1, torch.arange(16))
    assert augment(images, labels, rng, settings, 10)[0].shape == images.shape
    with pytest.raises(UserError, match="1 or 3 channels, not 2"):
        augment(
            images, labels, rng, dataclasses.replace(settings, three_augment=True), 10
        )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"flip": 1.5}, "flip=1.5 must be from 0 to 1"),
        ({"mixup": -1.0}, "mixup=-1.0 must be 0 or more"),
        ({"rand_augment": "rnd-m9"}, "is written rand-"),
        ({"crop_fill": "reflct"}, "Did you mean reflect"),
        ({"mix_mode": "pair"}, "mix_mode cannot be 'pair'. Allowed: batch, sample"),
        (
            {"colour_jitter": (0.1, 0.1, 0.1, 0.9)},
            "colour_jitter.3.=0.9 must be from 0 to 0.5",
        ),
        ({"erase_area": (0.5, 0.2)}, "erase_area.0.=0.5 must be"),
        ({"std": (0.2,)}, "need one value per channel"),
        ({"mix_group": 1}, "mix_group is 2 or more"),
    ],
)
def test_impossible_settings_are_refused(given, message):
    with pytest.raises(UserError, match=message):
        Augmentation(**given)


def test_one_graph_serves_every_step():
    # Traced and run without code generation, which takes a minute on two cores.
    graphs = []

    def count(graph, inputs):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(augment, fullgraph=True, backend=count)
    images, labels = batch(4)
    settings = dataclasses.replace(PUBLISHED, rand_augment="rand-m9-mstd0.5-inc1-n1")
    for step in range(3):
        rng = CounterRng.of(1, step, torch.arange(4) + 4 * step)
        expected, expected_targets = augment(images, labels, rng, settings, 10)
        floats, targets = compiled(images, labels, rng, settings, 10)
        assert torch.equal(floats, expected)
        assert torch.equal(targets, expected_targets)
    assert len(graphs) == 1


def test_images_are_augmented_without_labels():
    images, labels = batch()
    rng = CounterRng.of(0, 3, torch.arange(16))
    unmixed = dataclasses.replace(EVERYTHING, mixup=0.0, cutmix=0.0)
    expected, _ = augment(images, labels, rng, unmixed, 10)
    assert torch.equal(augment_images(images, rng, unmixed), expected)
    # Mixing needs labels, so that an image alone is never a mixture.
    assert torch.equal(augment_images(images, rng, EVERYTHING), expected)
    some = CounterRng.of(0, 3, torch.arange(3))
    assert torch.equal(augment_images(images[:3], some, EVERYTHING), expected[:3])
