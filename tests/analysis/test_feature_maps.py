"""Feature maps are the layers' outputs; dead channels equal a few-line reference."""

from typing import Any

import numpy as np
import pytest
import timm
import torch
from torch import Tensor, nn

import t2t
from t2t.analysis.feature_maps import (
    ChannelStatistics,
    LayerStatistics,
    feature_layers,
)
from t2t.analysis.token_maps import token_maps

SMALL: dict[str, Any] = {
    "dim": 16,
    "depth": 2,
    "num_heads": 2,
    "token_dim": 8,
    "num_classes": 3,
    "image_size": (32, 48),
}
IMAGES = torch.randn(3, 3, 32, 48, generator=torch.Generator().manual_seed(1))


def small(name: str = "t2t_vit_7_32", **model_args: object) -> nn.Module:
    torch.manual_seed(0)
    return t2t.create_model(name, **{**SMALL, **model_args}).eval()


def statistics_of(model: nn.Module) -> LayerStatistics:
    statistics = LayerStatistics()
    for image in IMAGES:
        statistics.add(feature_layers(model, image[None]))
    return statistics


def test_layers_of_ours_are_splits_and_blocks() -> None:
    model: Any = small(class_token=True, distilled=True)
    layers = feature_layers(model, IMAGES[:1])
    names = ["split 1", "split 2", "split 3", "block 1", "block 2"]
    assert [each.name for each in layers] == names
    splits = [features[0] for _, features in token_maps(model, IMAGES[:1])[:3]]
    pairs = model.forward_intermediates(
        IMAGES[:1], return_prefix_tokens=True, intermediates_only=True
    )
    expected = [*splits, *(features[0] for features, _ in pairs)]
    for layer, features in zip(layers, expected, strict=True):
        torch.testing.assert_close(layer.values, features)
        assert layer.grid == features.shape[1:]
    torch.testing.assert_close(layers[-1].prefix, pairs[-1][1][0])
    assert layers[0].prefix.shape == (0, 8)


@pytest.mark.parametrize(
    ("tokenizer", "names"),
    [
        ("t2t_conv", ["split 1", "split 2", "split 3"]),
        ("t2t", ["split 1", "split 2", "split 3"]),
        ("patch", ["patches"]),
    ],
)
def test_every_tokenizer_has_its_steps(tokenizer: str, names: list[str]) -> None:
    layers = feature_layers(small(tokenizer=tokenizer), IMAGES[:1])
    assert [each.name for each in layers] == [*names, "block 1", "block 2"]


def test_layers_of_timm_vits_are_patches_and_blocks() -> None:
    tiny = {"embed_dim": 24, "depth": 2, "num_heads": 3, "img_size": (32, 48)}
    model: Any = timm.create_model("vit_tiny_patch16_224", **tiny).eval()
    layers = feature_layers(model, IMAGES[:1])
    assert [each.name for each in layers] == ["patches", "block 1", "block 2"]
    expected = model.forward_intermediates(IMAGES[:1], intermediates_only=True)
    for layer, features in zip(layers[1:], expected, strict=True):
        torch.testing.assert_close(layer.values, features[0])
    assert [each.prefix.shape for each in layers] == [(0, 24), (1, 24), (1, 24)]
    patches = model.patch_embed(IMAGES[:1])[0].T.unflatten(1, (2, 3))
    torch.testing.assert_close(layers[0].values, patches)


def test_layers_of_cnns_are_stages() -> None:
    model: Any = t2t.create_model("resnet18_32", num_classes=3).eval()
    layers = feature_layers(model, IMAGES[:1])
    names = ["stage 1", "stage 2", "stage 3", "stage 4", "stage 5"]
    assert [each.name for each in layers] == names
    expected = model.forward_intermediates(IMAGES[:1], intermediates_only=True)
    for layer, features in zip(layers, expected, strict=True):
        torch.testing.assert_close(layer.values, features[0])


def test_dead_and_outsized_channels_equal_a_reference() -> None:
    model: Any = small()

    def damage(part: nn.Module, inputs: object, output: Tensor) -> Tensor:
        changed = output.clone()
        changed[..., 3] = 0.05  # the same everywhere
        changed[..., 5] = 0.0
        changed[..., 6] = 0.1 + 0.001 * output[..., 6]  # nearly so
        changed[..., 9] *= 100
        return changed

    model.encoder.blocks[1].register_forward_hook(damage)
    found = statistics_of(model).channels()
    maps = model.forward_intermediates(IMAGES, intermediates_only=True)
    assert found[-1].name == "block 2"
    for layer, features in zip(found[-2:], maps, strict=True):
        values = features.double().transpose(0, 1).flatten(1)
        std, rms = values.std(1, correction=0), values.square().mean(1).sqrt()
        torch.testing.assert_close(layer.std.double(), std, rtol=1e-5, atol=1e-6)
        assert torch.equal(layer.dead, std <= 0.01 * np.median(std.detach()))
        assert torch.equal(layer.outsized, rms > 10 * np.median(rms.detach()))
    assert found[-1].dead.nonzero().flatten().tolist() == [3, 5, 6]
    assert found[-1].outsized.nonzero().flatten().tolist() == [9]
    assert not found[-2].dead.any()


def test_half_of_the_channels_can_be_dead() -> None:
    std = torch.tensor([0.9, 1.1, 1.0, 1e-4, 1e-4, 2e-4])
    found = ChannelStatistics(name="block 1", std=std, rms=std)
    assert found.dead.tolist() == [False, False, False, True, True, True]


def test_channels_that_are_all_zero_are_dead() -> None:
    model: Any = small()
    model.encoder.blocks[1].register_forward_hook(lambda _, args, out: 0 * out)
    assert statistics_of(model).channels()[-1].dead.all()


def test_a_single_place_cannot_vary() -> None:
    statistics = LayerStatistics()
    model = small("vit_small_16", patch_size=32, image_size=32)
    statistics.add(feature_layers(model, IMAGES[:1, :, :, :32]))
    assert statistics.channels() == ()
    statistics.add(feature_layers(model, IMAGES[1:2, :, :, :32]))
    assert len(statistics.channels()) == 3


def test_token_norms_are_over_all_tokens_of_all_images() -> None:
    model: Any = small(class_token=True, pool="class")
    found = statistics_of(model).norms()[-1]
    pairs = model.forward_intermediates(
        IMAGES, return_prefix_tokens=True, intermediates_only=True
    )
    features, prefix = pairs[-1]
    norms = features.norm(dim=1).flatten()
    assert found.mean == pytest.approx(norms.mean().item(), rel=1e-5)
    expected = torch.quantile(norms, torch.tensor([0.05, 0.95])).tolist()
    assert [found.low, found.high] == pytest.approx(expected, rel=1e-4)
    assert found.prefix == pytest.approx([prefix.norm(dim=2).mean().item()], rel=1e-5)
