"""Filters are what the first layer computes; positions are those of the model."""

from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import nn

import t2t
from t2t.analysis.first_layer import first_filters, position_maps

SMALL: dict[str, Any] = {
    "dim": 16,
    "depth": 2,
    "num_heads": 2,
    "token_dim": 8,
    "num_classes": 3,
    "image_size": (32, 48),
}
IMAGE = torch.randn(1, 3, 32, 48, generator=torch.Generator().manual_seed(1))


def small(name: str = "t2t_vit_7_32", **model_args: object) -> Any:
    torch.manual_seed(0)
    return t2t.create_model(name, **{**SMALL, **model_args}).eval()


@pytest.mark.parametrize("tokenizer", ["t2t", "t2t_performer"])
def test_the_filters_of_a_soft_split_make_its_values(tokenizer: str) -> None:
    model = small(tokenizer=tokenizer)
    step = model.tokenizer.steps[0]
    nn.init.uniform_(step.norm1.weight, 0.5, 1.5)
    found = first_filters(model)
    assert found is not None
    # The mean and size of each window are removed before; here by hand.
    windows = F.unfold(IMAGE, 3, padding=1, stride=1)
    normed = F.layer_norm(windows.transpose(1, 2), (27,), eps=step.norm1.eps)
    values = normed @ found.values.flatten(1).T
    with torch.no_grad():
        whole = step.qkv(step.norm1(windows.transpose(1, 2)))[..., 16:]
    constant = whole - values
    torch.testing.assert_close(constant, constant[:, :1].expand_as(constant))
    assert found.caption.endswith("first soft split, 3×3 pixels each.")


def test_without_a_token_transformer_the_filters_make_tokens() -> None:
    model = small(tokenizer="t2t", splits=((4, 4, 0),))
    found = first_filters(model)
    assert found is not None
    tokens = F.conv2d(IMAGE, found.values, model.tokenizer.project.bias, 4)
    torch.testing.assert_close(tokens, model.tokenizer(IMAGE))


@pytest.mark.parametrize("tokenizer", ["patch", "t2t_conv"])
def test_convolutions_show_their_weights(tokenizer: str) -> None:
    model = small(tokenizer=tokenizer)
    found = first_filters(model)
    assert found is not None
    first = next(each for each in model.modules() if isinstance(each, nn.Conv2d))
    assert torch.equal(found.values, first.weight.detach())


def test_a_model_without_convolutions_has_no_filters() -> None:
    assert first_filters(nn.Linear(3, 3)) is None


@pytest.mark.parametrize("positions", ["learned_1d", "learned_2d", "sinusoid_2d"])
def test_positions_are_compared_by_their_cosine(positions: str) -> None:
    model = small(positions=positions, class_token=True)
    found = position_maps(model, (32, 48))
    assert found is not None
    assert not found.is_bias
    table = model.encoder.positions.tables[0].embedding((16, 24))[1:].detach()
    # 24 columns are more than are shown: every second one is.
    assert found.values.shape == (16, 12, 16, 24)
    query, key = 3 * 24 + 2 * 5, 7 * 24 + 11
    cosine = F.cosine_similarity(table[query], table[key], dim=0)
    torch.testing.assert_close(found.values[3, 5, 7, 11], cosine)


def test_relative_positions_show_their_bias() -> None:
    model = small(positions="relative", class_token=True)
    found = position_maps(model, (32, 48))
    assert found is not None
    assert found.is_bias
    bias = model.encoder.positions.tables[0].attention_bias((16, 24))[0]
    middle = 1 + 8 * 24 + 12
    torch.testing.assert_close(found.values[0].flatten(1), bias[:, middle, 1:])


def test_positions_of_timm_vits_and_of_models_without() -> None:
    tiny = {"embed_dim": 24, "depth": 1, "num_heads": 3, "img_size": (32, 48)}
    model: Any = timm.create_model("vit_tiny_patch16_224", **tiny)
    found = position_maps(model, (32, 48))
    assert found is not None
    table = model.pos_embed[0, 1:].detach()
    cosine = F.cosine_similarity(table[1], table[5], dim=0)
    torch.testing.assert_close(found.values[0, 1, 1, 2], cosine)
    assert position_maps(small(positions="none"), (32, 48)) is None
    assert position_maps(t2t.create_model("resnet18_32"), (32, 32)) is None
