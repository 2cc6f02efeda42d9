"""Patches of whole tokens, and masks of them."""

import pytest
import torch

from t2t.errors import UserError
from t2t.models.create import create_model
from t2t.tasks import TaskContext, build_task
from t2t.tasks.patches import MaskToken, PatchGrid, fixed_rng, random_order


def grid(
    image: tuple[int, int], tokens: tuple[int, int], side: int | None = None
) -> PatchGrid:
    return PatchGrid(image, tokens, side)


@pytest.mark.parametrize(
    ("image", "tokens", "side"),
    [((8, 8), (4, 4), 4), ((8, 12), (4, 6), 2), ((12, 8), (12, 8), 4)],
)
def test_patches_hold_the_pixels_of_their_tokens(
    image: tuple[int, int], tokens: tuple[int, int], side: int
) -> None:
    patches = grid(image, tokens, side)
    images = torch.rand(2, 3, *image)
    found = patches.split(images)
    size = image[0] // tokens[0]
    for number in range(patches.num_patches):
        row, column = divmod(number, image[1] // side)
        square = images[
            :, :, row * side : (row + 1) * side, column * side : (column + 1) * side
        ]
        for place, token in enumerate(patches.tokens[number].tolist()):
            y, x = (size * each for each in divmod(token, tokens[1]))
            cell = images[:, :, y : y + size, x : x + size]
            of_patch = found[:, number, place].unflatten(1, (size, size, 3))
            assert torch.equal(of_patch.permute(0, 3, 1, 2), cell)
        assert torch.equal(found[:, number].flatten(1).sort()[0], sorted_of(square))
    assert torch.equal(patches.join(found), images)


def sorted_of(square: torch.Tensor) -> torch.Tensor:
    return square.flatten(1).sort()[0]


def test_masks_and_means_go_by_patches() -> None:
    patches = grid((8, 8), (4, 4), 4)
    assert patches.tokens.tolist() == [
        [0, 1, 4, 5],
        [2, 3, 6, 7],
        [8, 9, 12, 13],
        [10, 11, 14, 15],
    ]
    mask = torch.tensor([[False, True, False, False]])
    assert patches.to_tokens(mask)[0].nonzero().flatten().tolist() == [2, 3, 6, 7]
    pixels = patches.to_pixels(mask)
    assert pixels.shape == (1, 1, 8, 8)
    assert pixels[0, 0, :4, 4:].all()
    assert pixels.sum() == 16
    tokens = torch.rand(2, 16, 5)
    chosen = torch.tensor([[3, 0], [1, 2]])
    means = patches.mean_of_tokens(tokens)
    torch.testing.assert_close(means[1, 2], tokens[1, [8, 9, 12, 13]].mean(0))
    assert patches.tokens_of(chosen)[0].tolist() == [10, 11, 14, 15, 0, 1, 4, 5]


def test_the_default_patch_is_a_token_of_at_least_four_pixels() -> None:
    assert grid((224, 224), (14, 14)).side == 16
    assert grid((32, 32), (16, 16)).side == 4
    assert grid((64, 64), (16, 16)).side == 4
    assert grid((8, 8), (8, 8)).side == 4


def test_impossible_patches_are_refused() -> None:
    with pytest.raises(UserError, match="does not divide into squares"):
        grid((33, 33), (17, 17))
    with pytest.raises(UserError, match="does not divide into squares"):
        grid((32, 64), (16, 16))
    with pytest.raises(UserError, match=r"patch_size=5 .* choose one of 2, 4\."):
        grid((8, 8), (4, 4), 5)
    with pytest.raises(UserError, match=r"patch_size=8 .* choose one of 2, 4\."):
        grid((8, 8), (4, 4), 8)
    with pytest.raises(UserError, match="image_size=16×16 is one token"):
        grid((16, 16), (1, 1))


def test_orders_are_permutations_drawn_for_each_image() -> None:
    levels = torch.randint(0, 256, (64, 3, 8, 8))
    order = random_order(fixed_rng(levels), 16)
    assert torch.equal(order.sort(1)[0], torch.arange(16).expand(64, -1))
    assert len({*map(tuple, order.tolist())}) == 64
    # The same image has the same mask in any batch.
    assert torch.equal(random_order(fixed_rng(levels[5:7]), 16), order[5:7])
    shifted = levels.roll(1, dims=3)
    assert not torch.equal(random_order(fixed_rng(shifted), 16), order)


def test_the_mask_token_replaces_what_is_masked() -> None:
    token, tokens = MaskToken(4), torch.rand(1, 3, 4)
    seen = token(tokens, torch.tensor([[False, True, False]]))
    assert torch.equal(seen[0, 1], token.vector)
    assert torch.equal(seen[0, [0, 2]], tokens[0, [0, 2]])


@pytest.mark.parametrize("name", ["masked_patches", "masked_autoencoder"])
def test_models_that_cannot_be_masked_are_refused(name: str) -> None:
    context = TaskContext(num_classes=0, image_size=(32, 32), model_name="resnet18")
    model = create_model("resnet18", num_classes=0)
    with pytest.raises(UserError, match=r"resnet18 is timm's; choose one of t2t's"):
        build_task(name, {}, model, context)
    dropping = TaskContext(num_classes=0, image_size=(32, 32), keep_tokens=0.5)
    model = create_model("t2t_vit_7_32", num_classes=0, depth=1)
    with pytest.raises(UserError, match=r"set token_dropping\.keep=1"):
        build_task(name, {}, model, dropping)
