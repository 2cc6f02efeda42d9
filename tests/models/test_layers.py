"""Layers, each tested in a line or two."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from t2t.models.blocks import MIXERS
from t2t.models.config import ModelConfig
from t2t.models.layers import (
    DropPath,
    GhostLinear,
    SqueezeExcite,
)
from t2t.models.token_grid import resize_projection
from t2t.models.tokenizers import Patches, SoftmaxTokenTransformer
from t2t.models.vit import VisionTransformer
from t2t.ops.soft_split import Split

CONFIG = ModelConfig(
    dim=32, depth=1, num_heads=4, mlp_ratio=2, qkv_bias=True, linformer_dim=5
)


@pytest.mark.parametrize("name", MIXERS)
@pytest.mark.parametrize("biased", [False, True])
def test_the_map_is_the_one_that_forward_uses(name: str, biased: bool) -> None:
    mixer = MIXERS[name](32, (3, 4), CONFIG)
    for parameter in mixer.parameters():
        nn.init.normal_(parameter, std=0.3)
    tokens = torch.randn(2, 13, 32)
    with_bias = biased and name != "linformer"
    bias = torch.randn(1, 4, 13, 13) if with_bias else None
    weights = mixer.weights(tokens, (3, 4), bias)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 4, 13))
    value = mixer.heads(mixer.project(tokens, (3, 4)), (3, 4))[2]
    mixed = (weights @ value).transpose(1, 2).flatten(2)
    expected = mixer.gate(mixer.proj(mixed))
    torch.testing.assert_close(mixer(tokens, (3, 4), bias), expected)


def test_stochastic_depth_keeps_the_mean_and_drops_whole_samples() -> None:
    torch.manual_seed(0)
    drop = DropPath(0.25)
    dropped = drop(torch.ones(4000, 3, 2))
    assert dropped.unique().tolist() == [0.0, pytest.approx(4 / 3)]
    assert dropped.mean() == pytest.approx(1, abs=0.03)
    assert (dropped == dropped[:, :1, :1]).all()
    assert drop.eval()(dropped) is dropped


def test_stochastic_depth_grows_with_the_layers() -> None:
    config = replace(CONFIG, depth=3, drop_path=0.2, image_size=(32, 32))
    rates = VisionTransformer(config).encoder.drop_rates()
    assert rates == pytest.approx([0.0, 0.1, 0.2])


def test_sums_over_more_tokens_keep_their_size() -> None:
    weight = torch.ones(3, 2 + 4)
    resized = resize_projection(weight, 2, (2, 2), (3, 5))
    torch.testing.assert_close(resized.sum(1), weight.sum(1))


def test_a_ghost_layer_scales_what_it_computed() -> None:
    ghost = GhostLinear(6, 12, 3, bias=True)
    out = ghost(torch.randn(2, 5, 6))
    computed, first, second = out.split(4, dim=-1)
    torch.testing.assert_close(first, computed * ghost.scales[0])
    torch.testing.assert_close(second, computed * ghost.scales[1])


def test_channel_attention_gates_by_the_mean_token() -> None:
    gate = SqueezeExcite(32)
    tokens = torch.randn(2, 7, 32)
    ratio = gate(tokens) / tokens
    torch.testing.assert_close(ratio, ratio[:, :1].expand(-1, 7, -1))
    assert (ratio > 0).all()
    assert (ratio < 1).all()


def test_softmax_tokens_scale_by_the_windows_width() -> None:
    step = SoftmaxTokenTransformer(3, Split(7, 4, 2), 16, 1e-5, 0.0)
    projected = torch.randn(2, 9, 48)
    query, key, value = projected.chunk(3, dim=-1)
    expected = (query @ key.transpose(1, 2) / 147**0.5).softmax(-1) @ value
    mixed, skip = step.attend(projected)
    torch.testing.assert_close(mixed, expected)
    torch.testing.assert_close(skip, value)


def test_hard_patches_see_their_own_pixels() -> None:
    patches = Patches(
        ModelConfig(dim=8, depth=1, num_heads=1, mlp_ratio=1, patch_size=4)
    )
    images = torch.zeros(1, 3, 8, 12)
    blank = patches(images)
    images[0, :, 4:, 8:] = 1
    changed = (patches(images) != blank).any(1)[0]
    assert changed.tolist() == [[False, False, False], [False, False, True]]
