"""The masked autoencoder: its loss, what its encoder sees, no leak."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from t2t.data.augment.config import Augmentation
from t2t.data.augment.pipeline import normalise
from t2t.data.rng import CounterRng
from t2t.errors import UserError
from t2t.models.create import create_model
from t2t.tasks import TaskContext, build_task
from t2t.tasks.masked_autoencoder import MaskedAutoencoder

MEAN, STD = (0.49, 0.48, 0.44), (0.25, 0.24, 0.26)
PLAIN = Augmentation(mean=MEAN, std=STD)
SMALL = {"dim": 16, "depth": 2, "num_heads": 2, "token_dim": 8}
DECODER = {"decoder_dim": 16, "decoder_depth": 1, "decoder_heads": 2}
TOKENIZERS: dict[str, dict[str, Any]] = {
    "t2t": {"tokenizer": "t2t"},
    "t2t_performer": {"tokenizer": "t2t_performer"},
    "patch": {"tokenizer": "patch", "patch_size": 2},
    "class token": {"class_token": True, "pool": "class"},
    "dense": {"wiring": "dense", "dense_stages": (1, 1), "growth": 8},
}


def autoencoder(kind: str = "t2t_performer", **args: Any) -> MaskedAutoencoder:
    torch.manual_seed(0)
    size = (16, 16)
    model = create_model(
        "t2t_vit_7_32", num_classes=0, image_size=size, **SMALL, **TOKENIZERS[kind]
    )
    context = TaskContext(num_classes=0, image_size=size, mean=MEAN, std=STD)
    task = build_task("masked_autoencoder", {**DECODER, **args}, model, context)
    assert isinstance(task, MaskedAutoencoder)
    return task.eval()


def pixels_of(num: int) -> Tensor:
    return torch.randint(0, 256, (num, 3, 16, 16), dtype=torch.uint8)


def views_of(
    task: MaskedAutoencoder, pixels: Tensor, augmentation: Augmentation = PLAIN
) -> dict[str, Tensor]:
    rng = CounterRng.of(0, 0, torch.arange(len(pixels)))
    labels = torch.zeros(len(pixels), dtype=torch.int64)
    return task.views((pixels,), labels, rng, augmentation)


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_loss_is_the_error_of_masked_patches_each_normalised(kind: str) -> None:
    task = autoencoder(kind)
    pixels = pixels_of(3)
    pixels[0, :, :4, :4] = 77  # a flat patch has nothing to predict
    views = views_of(task, pixels)
    order, loss = views["order"], task(views)["loss"]
    predicted = task.predict(task.model, views["images"], order)
    assert predicted.shape == (3, 12, 4, 2 * 2 * 3)
    errors = []
    for image in range(3):
        for place, number in enumerate(order[image, 4:].tolist()):
            y, x = (4 * each for each in divmod(number, 4))
            patch = pixels[image, :, y : y + 4, x : x + 4].double() / 255
            wanted = (patch - patch.mean()) / (patch.var() + 1e-6).sqrt()
            for token in range(4):  # of 2 × 2 pixels
                v, u = (2 * each for each in divmod(token, 2))
                cell = wanted[:, v : v + 2, u : u + 2].permute(1, 2, 0).flatten()
                found = predicted[image, place, token].double()
                errors.append((found - cell).square().mean())
    torch.testing.assert_close(loss.double(), torch.stack(errors).mean())


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_no_prediction_sees_a_masked_patch(kind: str) -> None:
    task = autoencoder(kind)
    images = torch.randn(2, 3, 16, 16, requires_grad=True)
    order = views_of(task, pixels_of(2))["order"]
    mask = task.mask(order)
    predicted = task.predict(task.model, task.blank(images, mask), order)
    for image in range(2):
        (grad,) = torch.autograd.grad(
            predicted[image].square().sum(), images, retain_graph=True
        )
        by_patch = task.patches.split(grad).abs().sum((2, 3))
        assert (by_patch[image][mask[image]] == 0).all()
        assert (by_patch[image][~mask[image]] > 0).all()
        assert (by_patch[1 - image] == 0).all()


@pytest.mark.parametrize("kind", ["t2t", "class token"])
def test_the_blocks_see_the_visible_tokens_only(kind: str) -> None:
    task = autoencoder(kind)
    seen: list[Tensor] = []
    task.model.encoder.blocks[0].register_forward_pre_hook(
        lambda block, given: seen.append(given[0].detach())
    )
    views = views_of(task, pixels_of(2))
    task(views)
    tokens, grid = task.model.tokenize(views["images"])
    tokens = task.model.encoder.positions.add_to(tokens, 0, grid)
    num_prefix = task.model.config.num_prefix_tokens
    for image in range(2):
        visible = [
            token
            for number in views["order"][image, :4].tolist()
            for token in task.patches.tokens[number].tolist()
        ]
        assert len(visible) == 16
        expected = tokens[
            image, [*range(num_prefix), *(num_prefix + t for t in visible)]
        ]
        torch.testing.assert_close(seen[0][image], expected)


def test_the_decoder_puts_tokens_back_in_their_places() -> None:
    """With identities for layers, each masked token gets its own position."""
    task = autoencoder()
    decoder = task.decoder
    places: list[Tensor] = []

    class Look(nn.Module):
        def forward(self, tokens: Tensor, grid: Any, norm: Any) -> Tensor:
            places.append(tokens.detach())
            return tokens

    decoder.encoder = Look()  # type: ignore[assignment]
    order = task.patches.tokens_of(torch.stack([torch.randperm(16) for _ in range(2)]))
    visible = torch.randn(2, 16, 16)
    decoder(visible, order)
    embedded = decoder.embed(visible)
    for image in range(2):
        for place, token in enumerate(order[image].tolist()):
            expected = (
                embedded[image, place] if place < 16 else decoder.mask_token.vector
            )
            torch.testing.assert_close(places[0][image, token], expected)


@pytest.mark.parametrize(("ratio", "num_visible"), [(0.75, 4), (0.5, 8), (1.0, 1)])
def test_the_mask_ratio(ratio: float, num_visible: int) -> None:
    task = autoencoder(mask_ratio=ratio)
    views = views_of(task, pixels_of(4))
    assert task.num_visible == num_visible
    mask = task.mask(views["order"])
    assert (mask.sum(1) == 16 - num_visible).all()
    assert (task.patches.split(views["images"])[mask] == 0).all()
    assert (task.patches.split(views["images"])[~mask] != 0).any(2).all()


def test_targets_are_the_augmented_pixels_that_were_not_erased() -> None:
    task = autoencoder()
    pixels = pixels_of(4)
    changed = Augmentation(mean=MEAN, std=STD, erase=1.0, flip=1.0)
    views = views_of(task, pixels, changed)
    assert torch.equal(views["pixels"], pixels.flip(3))
    plain = task.blank(normalise(views["pixels"], MEAN, STD), task.mask(views["order"]))
    assert not torch.equal(views["images"], plain)


def test_an_evaluation_masks_the_same_patches_every_time() -> None:
    task = autoencoder()
    images, labels = normalise(pixels_of(6), MEAN, STD), torch.zeros(6)
    whole = task.score(task.model, images, labels)["val_loss"]
    part = task.score(task.model, images[2:4], labels[2:4])["val_loss"]
    assert whole.shape == (6,)
    torch.testing.assert_close(part, whole[2:4])


def test_pictures_show_the_reconstruction() -> None:
    task = autoencoder()
    pixels = pixels_of(2)
    images = normalise(pixels, MEAN, STD)
    shown = task.pictures(task.model, images)
    assert [*shown] == ["image", "visible", "reconstruction (true mean)"]
    assert torch.equal(shown["image"], pixels)
    where = (shown["visible"] == 128).all(1, keepdim=True).expand_as(pixels)
    assert where.double().mean().item() == pytest.approx(0.75, abs=0.01)
    for picture in shown.values():
        assert torch.equal(picture[~where], pixels[~where])
    # A perfect prediction gives the image back.
    task.predict = lambda model, images, order: task.targets(  # type: ignore[method-assign]
        task.levels(normalise(pixels, MEAN, STD)), order
    )[0]
    *_, rebuilt = task.pictures(task.model, images).values()
    assert torch.equal(rebuilt, pixels)


def test_views_compile_as_one_graph() -> None:
    task = autoencoder()
    pixels = pixels_of(4)
    rng = CounterRng.of(0, 0, torch.arange(4))
    given = ((pixels,), torch.zeros(4, dtype=torch.int64), rng, PLAIN)
    compiled = torch.compile(task.views, fullgraph=True, backend="aot_eager")
    found, expected = compiled(*given), task.views(*given)
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        torch.testing.assert_close(found[name], values)


@pytest.mark.parametrize("change", [{"positions": "relative"}, {"mixer": "linformer"}])
def test_models_that_need_all_tokens_are_refused(change: dict[str, str]) -> None:
    model = create_model(
        "t2t_vit_7_32", num_classes=0, image_size=(16, 16), **SMALL, **change
    )
    context = TaskContext(num_classes=0, image_size=(16, 16))
    with pytest.raises(UserError, match="the visible tokens only: it needs"):
        build_task("masked_autoencoder", {}, model, context)
    build_task("masked_patches", {}, model, context)


def test_the_decoder_needs_heads_that_divide_its_width() -> None:
    with pytest.raises(UserError, match=r"decoder_dim=16 .* decoder_heads=3"):
        autoencoder(decoder_heads=3)
