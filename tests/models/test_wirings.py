"""The pyramid: grids and widths of its stages, its soft splits, its features."""

import pytest
import timm
import torch
import torch.nn.functional as F

import t2t  # noqa: F401 (registers our models with timm)
from t2t.models.create import create_model
from t2t.models.wirings import Downsample

SMALL = {
    "dim": 8,
    "num_heads": 2,
    "token_dim": 8,
    "depth": 5,
    "pyramid_stages": (1, 2, 1, 1),
    "num_classes": 3,
}


@pytest.mark.parametrize("num_prefix", [0, 1])
def test_downsample_is_norm_unfold_linear(num_prefix: int) -> None:
    torch.manual_seed(0)
    module = Downsample(4, 6, num_prefix, 1e-5)
    tokens = torch.randn(2, num_prefix + 15, 4)
    normed = module.norm(tokens)
    image = normed[:, num_prefix:].transpose(1, 2).unflatten(2, (3, 5))
    windows = F.unfold(image, 3, padding=1, stride=2).transpose(1, 2)
    expected = module.project(windows)
    if module.prefix is not None:
        expected = torch.cat([module.prefix(normed[:, :num_prefix]), expected], dim=1)
    torch.testing.assert_close(module(tokens, (3, 5)), expected)
    assert module.out_grid((3, 5)) == (2, 3)


def test_stages_halve_the_grid_and_double_width_and_heads() -> None:
    model = create_model("t2t_pyramid_small", image_size=(64, 80), **SMALL)
    grid = model.tokenizer.grids((64, 80))[-1]
    assert model.encoder.grids(grid) == [(16, 20), (8, 10), (8, 10), (4, 5), (2, 3)]
    assert model.encoder.out_dims == [8, 16, 16, 32, 64]
    heads = [block.mixer.num_heads for block in model.encoder.blocks]
    assert heads == [2, 4, 4, 8, 16]
    assert model.forward_features(torch.randn(1, 3, 64, 80)).shape == (1, 6, 64)


def test_features_at_four_strides() -> None:
    features = timm.create_model(
        "t2t_pyramid_small",
        features_only=True,
        out_indices=(0, 1, 2, 3),
        img_size=64,
        **SMALL,
    )
    assert features.feature_info.reduction() == [4, 8, 16, 32]
    assert features.feature_info.channels() == [8, 16, 32, 64]
    maps = features(torch.randn(1, 3, 64, 96))
    assert [tuple(each.shape[1:]) for each in maps] == [
        (8, 16, 24),
        (16, 8, 12),
        (32, 4, 6),
        (64, 2, 3),
    ]


def test_features_of_the_first_stages_alone_remove_the_others() -> None:
    model = create_model("t2t_pyramid_small", image_size=64, **SMALL).eval()
    images = torch.randn(1, 3, 64, 64)
    expected = model.forward_intermediates(images, [0, 1], intermediates_only=True)
    assert model.prune_intermediate_layers([0, 1], prune_norm=True) == [0, 1]
    assert (len(model.encoder.blocks), [*model.encoder.downsamples]) == (3, ["0"])
    actual = model.forward_intermediates(images, [0, 1], intermediates_only=True)
    torch.testing.assert_close(actual, expected)


def test_relative_positions_have_each_stage_s_grid_and_heads() -> None:
    model = create_model(
        "t2t_pyramid_small",
        image_size=64,
        **SMALL,
        pyramid_mixers=(),
        positions="relative",
        positions_at="every_layer",
    ).eval()
    sizes = [tuple(each.offsets.shape) for each in model.encoder.positions.tables]
    assert sizes == [
        (2, 31, 31),
        (4, 15, 15),
        (4, 15, 15),
        (8, 7, 7),
        (16, 3, 3),
    ]
    images = torch.randn(1, 3, 96, 64)
    before = model(images)
    model.set_input_size((96, 64))
    torch.testing.assert_close(model(images), before)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"pyramid_stages": (2, 2)}, "sum to depth"),
        ({"pyramid_mixers": ("axial",)}, "1 mixers for 4 stages"),
        ({"pyramid_mixers": ("axail", "ghost", "ghost", "ghost")}, "axial"),
        ({"positions": "learned_1d", "positions_at": "shared"}, "one width"),
    ],
)
def test_what_it_cannot_be_is_refused(change: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        create_model("t2t_pyramid_small", **(SMALL | change))


def test_token_dropping_is_refused() -> None:
    model = create_model("t2t_pyramid_small", **SMALL | {"pyramid_mixers": ()})
    with pytest.raises(ValueError, match="pyramid"):
        model.encoder.keep_tokens(0.5)
