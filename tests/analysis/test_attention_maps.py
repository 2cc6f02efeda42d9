"""Attention maps equal what the layers compute; rollout equals a few-line reference."""

from dataclasses import replace
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

import t2t
from t2t.analysis import attention_maps as module
from t2t.analysis.attention_maps import (
    AttentionLayer,
    attention_maps,
    attention_maps_with_notes,
)
from t2t.analysis.attention_rollout import (
    attention_from_output,
    has_rollout,
    num_tokens_read,
    rollout,
    rollouts,
)
from t2t.errors import UserError
from t2t.models.tokenizers import TokenTransformer

SMALL: dict[str, Any] = {
    "dim": 16,
    "depth": 3,
    "num_heads": 2,
    "token_dim": 8,
    "num_classes": 3,
    "image_size": (32, 48),
}
IMAGE = torch.randn(1, 3, 32, 48, generator=torch.Generator().manual_seed(1))


def small(name: str = "t2t_vit_7_32", **model_args: object) -> nn.Module:
    torch.manual_seed(0)
    return t2t.create_model(name, **{**SMALL, **model_args}).eval()


def deit(**settings: object) -> nn.Module:
    torch.manual_seed(0)
    tiny = {"embed_dim": 24, "depth": 3, "num_heads": 3, "img_size": (32, 48)}
    name = str(settings.pop("name", "deit_tiny_patch16_224"))
    return timm.create_model(name, **{**tiny, **settings}).eval()


def rollout_reference(maps: list[Tensor], num_prefix: int, num_read: int) -> Tensor:
    joint = torch.eye(maps[0].shape[-1])
    for weights in maps:
        joint = (0.5 * torch.eye(len(joint)) + 0.5 * weights.mean(0)) @ joint
    rows = joint[:num_read] if num_read else joint[num_prefix:]
    share = rows.mean(0)[num_prefix:]
    return share / share.mean()


@pytest.mark.parametrize("pool", ["mean", "class"])
@pytest.mark.parametrize("up_to", [None, 1, 2])
def test_rollout_is_the_product_of_the_blocks(pool: str, up_to: int | None) -> None:
    model = small(class_token=True, distilled=True, pool=pool)
    layers = attention_maps(model, IMAGE, token_transformers=True)
    blocks = [each.weights for each in layers if each.is_block]
    num_read = {"mean": 0, "class": 2}[pool]
    assert num_tokens_read(model) == num_read
    found = rollout(layers, num_read=num_read, up_to=up_to)
    assert found.shape == layers[-1].grid
    expected = rollout_reference(blocks[:up_to], 2, num_read)
    torch.testing.assert_close(found.flatten(), expected)


def test_blocks_and_token_transformers_are_named_in_order() -> None:
    layers = attention_maps(small(), IMAGE, token_transformers=True)
    assert [(each.name, each.grid, each.weights.shape[0]) for each in layers] == [
        ("token transformer 1", (32, 48), 1),
        ("token transformer 2", (16, 24), 1),
        ("block 1", (16, 24), 2),
        ("block 2", (16, 24), 2),
        ("block 3", (16, 24), 2),
    ]
    assert all(torch.allclose(each.weights.sum(-1), torch.ones(())) for each in layers)
    assert len(attention_maps(small(), IMAGE)) == 3


@pytest.mark.parametrize("tokenizer", ["t2t", "t2t_performer"])
def test_token_transformers_mix_values_by_their_map(tokenizer: str) -> None:
    model = small(tokenizer=tokenizer)
    layers = attention_maps(model, IMAGE, token_transformers=True)
    step: Any = model.tokenizer.steps[0]
    assert isinstance(step, TokenTransformer)
    projected = torch.randn(2, 40, 24)
    mixed, value = step.attend(projected)
    found = step.attention_map(projected)
    assert found is not None
    torch.testing.assert_close(found[:, 0] @ value, mixed, atol=1e-5, rtol=1e-4)
    # The map that was collected belongs to the step's own input.
    whole = step.weights(IMAGE)
    assert whole is not None
    torch.testing.assert_close(layers[0].weights, whole[0])


@pytest.mark.parametrize(
    ("name", "settings", "num_prefix", "expected_read"),
    [
        ("deit_tiny_distilled_patch16_224", {}, 2, 2),
        ("vit_tiny_patch16_224", {}, 1, 1),
        ("vit_tiny_patch16_224", {"global_pool": "avg"}, 1, 0),
    ],
)
def test_timm_vits_give_the_maps_of_their_fused_attention(
    name: str, settings: dict[str, Any], num_prefix: int, expected_read: int
) -> None:
    model: Any = deit(name=name, **settings)
    inputs: list[Tensor] = []
    for block in model.blocks:
        block.attn.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    expected_output = model(IMAGE)
    assert all(block.attn.fused_attn for block in model.blocks)
    layers = attention_maps(model, IMAGE)
    assert [each.name for each in layers] == ["block 1", "block 2", "block 3"]
    assert {(each.grid, each.num_prefix) for each in layers} == {((2, 3), num_prefix)}
    for layer, block, tokens in zip(layers, model.blocks, inputs, strict=False):
        query, key, _ = block.attn.qkv(tokens).unflatten(-1, (3, 3, 8)).unbind(2)
        logits = torch.einsum("bqhd,bkhd->bhqk", query, key) / 8**0.5
        torch.testing.assert_close(layer.weights, logits.softmax(-1)[0])
    num_read = num_tokens_read(model)
    assert num_read == expected_read
    maps = [each.weights for each in layers]
    found = rollout(layers, num_read=num_read).flatten()
    torch.testing.assert_close(found, rollout_reference(maps, num_prefix, num_read))
    # The model is left as it was.
    assert all(block.attn.fused_attn for block in model.blocks)
    assert not any(part._forward_hooks for part in model.modules())
    assert torch.equal(model(IMAGE), expected_output)


def test_register_tokens_are_not_what_the_head_reads() -> None:
    model = deit(name="vit_small_patch16_224", reg_tokens=4)
    assert num_tokens_read(model) == 1
    assert attention_maps(model, IMAGE)[0].num_prefix == 5


@pytest.mark.parametrize("head", [None, 1])
def test_attention_of_one_head_is_a_row_of_its_map(head: int | None) -> None:
    layer = attention_maps(small(class_token=True, pool="class"), IMAGE)[1]
    found = attention_from_output(layer, num_read=1, head=head)
    of_head = layer.weights.mean(0) if head is None else layer.weights[head]
    row = of_head[0, 1:]
    torch.testing.assert_close(found.flatten(), row / row.mean())
    # Without a prefix, as in a token transformer, it is the mean of all rows.
    found = attention_from_output(layer, num_read=0, head=head)
    row = of_head[1:, 1:].mean(0)
    torch.testing.assert_close(found.flatten(), row / row.mean())


def test_averaged_heads_are_one_head() -> None:
    whole = attention_maps(small(), IMAGE)
    averaged = attention_maps(small(), IMAGE, average_heads=True)
    for one, all_heads in zip(averaged, whole, strict=True):
        torch.testing.assert_close(one.weights, all_heads.weights.mean(0, True))


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (small(mixer="linformer"), "3 of 3 blocks have no attention map"),
        (t2t.create_model("resnet18_32").eval(), "no attention map over all tokens"),
        (timm.create_model("test_vit").eval(), ""),
    ],
)
def test_what_has_no_map_is_said(model: nn.Module, sentence: str) -> None:
    size = 160 if sentence == "" else 32
    image = torch.randn(1, 3, size, size)
    layers, notes = attention_maps_with_notes(model, image)
    assert bool(layers) == (sentence == "")
    assert sentence in " ".join(notes)
    assert bool(notes) == bool(sentence)


@pytest.mark.parametrize("make", [small, deit])
def test_maps_that_are_too_large_are_left_out(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_layer = attention_maps(make(), IMAGE)[0].weights.numel()
    monkeypatch.setattr(module, "MAX_WEIGHTS", 2 * one_layer)
    layers, notes = attention_maps_with_notes(make(), IMAGE)
    assert [each.name for each in layers] == ["block 1", "block 2"]
    assert notes == [
        "Attention maps of block 3 are left out: their size is the square of the "
        "number of tokens; choose a smaller image size to see them."
    ]
    monkeypatch.setattr(module, "MAX_LAYER_WEIGHTS", one_layer - 1)
    assert attention_maps(make(), IMAGE) == []


def test_layers_of_different_tokens_cannot_be_rolled_out() -> None:
    layers = [
        AttentionLayer(
            name=f"block {side}",
            grid=(side, side),
            num_prefix=0,
            weights=torch.ones(1, side**2, side**2) / side**2,
        )
        for side in (2, 3)
    ]
    with pytest.raises(UserError, match="the same tokens"):
        rollout(layers, num_read=0)
    assert not has_rollout(layers, small(depth=2))
    assert has_rollout(layers[:1], small(depth=1))
    assert not has_rollout(layers[:1], small(depth=2))
    with pytest.raises(UserError, match="one or more"):
        rollout([], num_read=0)
    with pytest.raises(UserError, match="2 are given"):
        attention_maps(small(), torch.randn(2, 3, 32, 48))


@pytest.mark.parametrize("num_read", [0, 1])
def test_rollouts_are_those_of_every_block_and_head(num_read: int) -> None:
    generator = torch.Generator().manual_seed(0)
    layers = [
        AttentionLayer(
            name=f"block {number}",
            grid=(2, 3),
            num_prefix=1,
            weights=torch.rand(4, 7, 7, generator=generator).softmax(-1),
        )
        for number in (1, 2, 3)
    ]
    found = rollouts(layers, num_read=num_read)
    assert found.shape == (3, 5, 2, 3)
    for up_to in (1, 2, 3):
        expected = rollout(layers, num_read=num_read, up_to=up_to)
        assert torch.allclose(found[up_to - 1, 0], expected, atol=1e-5)
        for head in range(4):
            alone = [
                replace(layer, weights=layer.weights[head : head + 1])
                for layer in layers
            ]
            expected = rollout(alone, num_read=num_read, up_to=up_to)
            assert torch.allclose(found[up_to - 1, 1 + head], expected, atol=1e-5)
    odd = [layers[0], replace(layers[1], weights=layers[1].weights[:2])]
    assert rollouts(odd, num_read=num_read).shape == (2, 1, 2, 3)
    with pytest.raises(UserError, match="same tokens"):
        rollouts([], num_read=num_read)
