"""Masked patch prediction: its corruption, its 512 colours, its loss, no leak."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from t2t.data.augment.config import Augmentation
from t2t.data.augment.pipeline import normalise
from t2t.data.rng import CounterRng
from t2t.errors import UserError
from t2t.models.create import create_model
from t2t.tasks import TaskContext, build_task
from t2t.tasks.masked_patches import MaskedPatches

MEAN, STD = (0.49, 0.48, 0.44), (0.25, 0.24, 0.26)
PLAIN = Augmentation(mean=MEAN, std=STD)
SMALL = {"dim": 16, "depth": 2, "num_heads": 2, "token_dim": 8}
TOKENIZERS: dict[str, dict[str, Any]] = {
    "t2t": {"tokenizer": "t2t"},
    "t2t_performer": {"tokenizer": "t2t_performer"},
    "t2t_conv": {"tokenizer": "t2t_conv"},
    "patch": {"tokenizer": "patch", "patch_size": 4},
    "class token": {"class_token": True, "pool": "class"},
}


def masked_patches(
    kind: str = "t2t_performer", side: int = 16, **args: Any
) -> MaskedPatches:
    torch.manual_seed(0)
    size = (side, side)
    model = create_model(
        "t2t_vit_7_32", num_classes=0, image_size=size, **SMALL, **TOKENIZERS[kind]
    )
    context = TaskContext(num_classes=0, image_size=size, mean=MEAN, std=STD)
    task = build_task("masked_patches", args, model, context)
    assert isinstance(task, MaskedPatches)
    return task


def rng_of(num: int, seed: int = 0, step: int = 0, first: int = 0) -> CounterRng:
    return CounterRng.of(seed, step, torch.arange(first, first + num))


def colour_of(square: Tensor) -> int:
    """3 bits of each channel's mean level, as ViT's authors define the colour."""
    red, green, blue = (int(each.double().mean()) // 32 for each in square)
    return 64 * red + 8 * green + blue


def test_a_colour_is_three_bits_of_each_channels_mean_level() -> None:
    task = masked_patches()
    pixels = torch.randint(0, 256, (3, 3, 16, 16), dtype=torch.uint8)
    pixels[0, :, :4, :4] = 32  # exactly on the border of two colours
    pixels[0, :, :4, 4:8] = 32
    pixels[0, 0, 0, 4] = 31  # just below it
    pixels[0, :, :4, 8:12] = 255
    pixels[0, :, :4, 12:] = 0
    found = task.mean_colours(pixels)
    for image in range(3):
        for number in range(16):
            y, x = (4 * each for each in divmod(number, 4))
            square = pixels[image, :, y : y + 4, x : x + 4]
            assert found[image, number] == colour_of(square)
    assert found[0, :4].tolist() == [64 + 8 + 1, 8 + 1, 511, 0]
    # An evaluation gets normalised images, and finds the same.
    assert torch.equal(
        task.mean_colours(task.levels(normalise(pixels, MEAN, STD))), found
    )


def test_views_are_the_colours_of_the_augmented_image() -> None:
    task = masked_patches()
    pixels = torch.randint(0, 256, (64, 3, 16, 16), dtype=torch.uint8)
    labels = torch.zeros(64, dtype=torch.int64)
    views = task.views((pixels,), labels, rng_of(64), PLAIN)
    chosen, colours = views["chosen"], views["colours"]
    assert torch.equal(colours, task.mean_colours(pixels).gather(1, chosen))
    # Erased images keep the colours of what was erased, and flipped ones are flipped.
    changed = Augmentation(mean=MEAN, std=STD, erase=1.0, flip=1.0)
    views = task.views((pixels,), labels, rng_of(64), changed)
    flipped = task.mean_colours(pixels.flip(3)).gather(1, views["chosen"])
    assert torch.equal(views["colours"], flipped)


def test_half_is_corrupted_of_which_80_10_10() -> None:
    task = masked_patches(side=32)
    num, patches = 2000, 64
    corruption = task.draw_corruption(rng_of(num))
    assert corruption.chosen.shape == (num, patches // 2)
    chosen = torch.zeros(num, patches, dtype=torch.bool)
    chosen.scatter_(1, corruption.chosen, True)
    assert (chosen.sum(1) == patches // 2).all()
    replaced = corruption.shown != torch.arange(patches)
    total = chosen.sum().item()
    for kind, share in ((corruption.masked, 0.8), (replaced, 0.1)):
        assert not (kind & ~chosen).any()
        deviation = (share * (1 - share) / total) ** 0.5
        assert abs(kind.sum().item() / total - share) < 4 * deviation
    assert not (corruption.masked & replaced).any()
    # Every patch is corrupted equally often, and every intact one is shown.
    often = chosen.double().mean(0)
    assert (often - 0.5).abs().max() < 5 * (0.25 / num) ** 0.5
    assert not chosen.gather(1, corruption.shown)[replaced].any()
    shown = corruption.shown[replaced].bincount(minlength=patches)
    expected = replaced.sum().item() / patches
    assert (shown - expected).abs().max() < 5 * expected**0.5


def test_corruption_depends_on_seed_step_and_image_alone() -> None:
    task = masked_patches()
    whole, part = (
        task.draw_corruption(rng_of(8)),
        task.draw_corruption(rng_of(3, first=4)),
    )
    assert all(torch.equal(a[4:7], b) for a, b in zip(whole, part, strict=True))
    for other in (rng_of(8, seed=1), rng_of(8, step=1)):
        assert not torch.equal(task.draw_corruption(other).chosen, whole.chosen)


def test_the_shares_can_be_set() -> None:
    args = {"corrupt_ratio": 0.25, "mask_share": 0.0, "replace_share": 1.0}
    task = masked_patches(**args)
    corruption = task.draw_corruption(rng_of(50))
    assert corruption.chosen.shape == (50, 4)
    assert not corruption.masked.any()
    assert ((corruption.shown != torch.arange(16)).sum(1) == 4).all()
    with pytest.raises(UserError, match="add up to more than 1"):
        masked_patches(mask_share=0.95)
    with pytest.raises(UserError, match=r"corrupt_ratio"):
        masked_patches(corrupt_ratio=1.5)


def test_a_replaced_patch_shows_another_and_a_masked_one_nothing() -> None:
    task = masked_patches()
    images = torch.randn(20, 3, 16, 16)
    corruption = task.draw_corruption(rng_of(20))
    before = task.patches.split(images)
    after = task.patches.split(task.corrupt(images, corruption))
    for image in range(20):
        for number in range(16):
            expected = before[image, corruption.shown[image, number]]
            if corruption.masked[image, number]:
                expected = torch.zeros_like(expected)
            assert torch.equal(after[image, number], expected)


@pytest.mark.parametrize("kind", ["t2t", "patch", "class token"])
def test_loss_is_the_cross_entropy_of_corrupted_patches(kind: str) -> None:
    task = masked_patches(kind).eval()
    pixels = torch.randint(0, 256, (5, 3, 16, 16), dtype=torch.uint8)
    labels = torch.zeros(5, dtype=torch.int64)
    views = task.views((pixels,), labels, rng_of(5), PLAIN)
    numbers = task(views)
    tokens, grid = task.model.tokenize(views["images"])
    num_prefix, hits = task.model.config.num_prefix_tokens, []
    for image, numbered in enumerate(views["masked"].tolist()):
        for number, is_masked in enumerate(numbered):
            if is_masked:
                for token in task.patches.tokens[number].tolist():
                    tokens[image, num_prefix + token] = task.mask_token.vector
    features = task.model.encoder(tokens, grid, task.model.norm)[:, num_prefix:]
    losses = []
    for image in range(5):
        for number in views["chosen"][image].tolist():
            of_patch = features[image, task.patches.tokens[number]].mean(0)
            y, x = (4 * each for each in divmod(number, 4))
            colour = colour_of(pixels[image, :, y : y + 4, x : x + 4])
            logits = task.head(of_patch)
            losses.append(-logits.log_softmax(0)[colour])
            hits.append(logits.argmax().item() == colour)
    torch.testing.assert_close(numbers["loss"], torch.stack(losses).mean())
    accuracy = 100 * sum(hits) / len(hits)
    assert numbers["corrupted_accuracy"].item() == pytest.approx(accuracy)


def test_blank_pixels_change_nothing_for_hard_patches() -> None:
    task = masked_patches("patch").eval()
    images = torch.randn(4, 3, 16, 16)
    corruption = task.draw_corruption(rng_of(4))
    chosen, masked = corruption.chosen, corruption.masked
    blanked = task.predict(task.model, task.blank(images, masked), masked, chosen)
    whole = task.predict(task.model, images, masked, chosen)
    torch.testing.assert_close(blanked, whole)


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_no_prediction_sees_what_was_corrupted(kind: str) -> None:
    task = masked_patches(kind).eval()
    images = torch.randn(2, 3, 16, 16, requires_grad=True)
    corruption = task.draw_corruption(rng_of(2))
    seen = task.corrupt(images, corruption)
    logits = task.predict(task.model, seen, corruption.masked, corruption.chosen)
    own = torch.arange(16)
    hidden = corruption.masked | (corruption.shown != own)
    for image in range(2):
        for place, number in enumerate(corruption.chosen[image].tolist()):
            (grad,) = torch.autograd.grad(
                logits[image, place].square().sum(), images, retain_graph=True
            )
            by_patch = task.patches.split(grad).abs().sum((2, 3))
            # Not the patch itself, nor any other that is hidden or in another image.
            assert (by_patch[image, number] == 0) == bool(hidden[image, number])
            assert (by_patch[image][hidden[image]] == 0).all()
            assert (by_patch[image][~hidden[image]] > 0).all()
            assert (by_patch[1 - image] == 0).all()


def test_without_blank_pixels_overlapping_windows_would_leak() -> None:
    task = masked_patches("t2t_conv").eval()
    images = torch.randn(1, 3, 16, 16, requires_grad=True)
    corruption = task.draw_corruption(rng_of(1))
    masked, chosen = corruption.masked, corruption.chosen
    logits = task.predict(task.model, images, masked, chosen)
    (grad,) = torch.autograd.grad(logits.square().sum(), images)
    assert (task.patches.split(grad).abs().sum((2, 3))[masked] > 0).any()


def test_an_evaluation_masks_the_same_patches_every_time() -> None:
    task = masked_patches().eval()
    pixels = torch.randint(0, 256, (6, 3, 16, 16), dtype=torch.uint8)
    images, labels = normalise(pixels, MEAN, STD), torch.zeros(6)
    whole = task.score(task.model, images, labels)
    assert {*whole} == {metric.name for metric in task.metrics}
    part = task.score(task.model, images[2:4], labels[2:4])
    for name, values in whole.items():
        assert values.shape == (6,)
        torch.testing.assert_close(part[name], values[2:4])
    hidden = task.fixed_mask(pixels)
    assert (hidden.masked.sum(1) == 8).all()
    logits = task.predict(
        task.model, task.blank(images, hidden.masked), hidden.masked, hidden.chosen
    )
    colours = task.mean_colours(pixels).gather(1, hidden.chosen)
    loss = torch.stack(
        [F.cross_entropy(a, b) for a, b in zip(logits, colours, strict=True)]
    )
    torch.testing.assert_close(whole["val_loss"], loss)
    hits = (logits.argmax(2) == colours).double().mean(1)
    torch.testing.assert_close(whole["masked_accuracy"].double(), 100 * hits)


def test_pictures_show_the_predicted_colours() -> None:
    task = masked_patches().eval()
    pixels = torch.randint(0, 256, (2, 3, 16, 16), dtype=torch.uint8)
    shown = task.pictures(task.model, normalise(pixels, MEAN, STD))
    assert [*shown] == ["image", "masked", "true mean colours", "predicted colours"]
    assert torch.equal(shown["image"], pixels)
    where = task.patches.to_pixels(task.fixed_mask(pixels).masked).expand_as(pixels)
    for picture in shown.values():
        assert picture.dtype == torch.uint8
        assert torch.equal(picture[~where], pixels[~where])
    assert (shown["masked"][where] == 128).all()
    true = task.mean_colours(shown["true mean colours"])
    assert torch.equal(true, task.mean_colours(pixels))
    within = (shown["true mean colours"].int() - shown["image"].int())[where]
    assert within.double().mean().abs() < 8


@pytest.mark.parametrize("channels", [1, 4])
def test_other_channels_have_other_numbers_of_colours(channels: int) -> None:
    size, each = (8, 8), (0.5,) * channels
    model = create_model(
        "t2t_vit_7_32", num_classes=0, image_size=size, in_channels=channels, **SMALL
    )
    context = TaskContext(num_classes=0, image_size=size, mean=each, std=each)
    task = build_task("masked_patches", {}, model, context)
    assert isinstance(task, MaskedPatches)
    assert task.head.out_features == 8**channels
    pixels = torch.full((2, channels, 8, 8), 255, dtype=torch.uint8)
    assert (task.mean_colours(pixels) == 8**channels - 1).all()
    assert (
        task.pictures(model, normalise(pixels, each, each))["image"].shape
        == pixels.shape
    )


@pytest.fixture
def compiled() -> Callable[..., Any]:
    def compile(task: MaskedPatches) -> Callable[..., Any]:
        return torch.compile(task.views, fullgraph=True, backend="aot_eager")

    return compile


def test_views_compile_as_one_graph(compiled: Callable[..., Any]) -> None:
    task = masked_patches()
    pixels = torch.randint(0, 256, (4, 3, 16, 16), dtype=torch.uint8)
    given = ((pixels,), torch.zeros(4, dtype=torch.int64), rng_of(4), PLAIN)
    found, expected = compiled(task)(*given), task.views(*given)
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        torch.testing.assert_close(found[name], values)
