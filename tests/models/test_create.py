"""Models by name: what is allowed, and what a mistake says."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

from t2t.errors import UserError
from t2t.models.create import create_model
from t2t.models.zoo import ZOO


def test_names_of_the_published_family_are_there() -> None:
    for name in ("t2t_vit_7", "t2t_vit_t_24", "t2t_vit_dense", "vit_huge_14"):
        assert name in ZOO


def test_a_misspelled_name_says_what_was_meant() -> None:
    with pytest.raises(UserError, match="t2t_vit_14"):
        create_model("t2t_vit14")
    with pytest.raises(UserError, match="convnext_tiny"):
        create_model("convnxt_tiny")


@pytest.mark.parametrize("name", [None, 3])
def test_an_invalid_name_is_reported(name: Any) -> None:
    with pytest.raises(UserError, match=f"A model's name is a string, not {name}"):
        create_model(name)


def test_a_misspelled_option_says_what_was_meant() -> None:
    with pytest.raises(UserError, match="num_heads"):
        create_model("t2t_vit_7", num_head=4)
    with pytest.raises(UserError, match="image_size"):
        create_model("t2t_vit_7", img_size=64)
    with pytest.raises(UserError, match="timm"):
        create_model("resnet50", positions="none")


@pytest.mark.parametrize(
    ("model_args", "word"),
    [
        ({"tokenizer": "patches"}, "t2t_performer"),
        ({"mixer": "atention"}, "linformer"),
        ({"mlp": "gost"}, "ghost"),
        ({"wiring": "dence"}, "residual"),
        ({"pool": "max"}, "mean"),
        ({"num_heads": 5}, "divides"),
        ({"depth": 0}, "depth=0"),
        ({"drop_path": 1.5}, "drop_path"),
        ({"token_dropout": 1.0}, "token_dropout=1.0 must be from 0 to below 1"),
        ({"mlp_ratio": -1.0}, "mlp_ratio=-1.0 must be"),
        ({"num_classes": -3}, "num_classes=-3 must be 0 or more"),
        ({"norm_eps": -1.0}, "norm_eps=-1.0 must be 0 or more"),
        ({"class_token": False}, "pool='mean'"),
        ({"wiring": "dense"}, "dense_stages"),
        ({"mixer": "linformer", "positions": "relative"}, "linformer"),
        ({"tokenizer": "hybrid", "stem": "no_net"}, "no_net"),
        ({"image_size": (0, 5)}, "positive"),
        ({"image_size": "big"}, "image_size takes one whole number or two"),
        ({"image_size": 2.5}, "image_size takes one whole number or two"),
        ({"image_size": (32, 32, 3)}, "image_size takes one whole number or two"),
        ({"image_size": 10**6}, "at most 16,777,216"),
        ({"image_size": 4096, "splits": ((3, 2, 1),) * 3}, "512×512 tokens; at most"),
        ({"depth": 10**7}, "depth=10000000 must be from 1 to 1000"),
        ({"splits": ()}, "splits has 0 soft splits; 1 to 16 are allowed"),
        ({"num_classes": "ten"}, "num_classes takes a whole number"),
        ({"depth": "x"}, 'depth="x" is not allowed: depth takes a whole number'),
        ({"depth": 2.5}, "depth takes a whole number"),
        ({"splits": 3}, "splits takes triples, such as"),
        ({"positions": 4}, "positions takes a word"),
        ({"mlp_ratio": {1, 2}}, "mlp_ratio takes a number"),
    ],
)
def test_wrong_choices_are_refused_in_one_sentence(
    model_args: dict[str, object], word: str
) -> None:
    with pytest.raises(UserError, match=word):
        create_model("t2t_vit_7", **model_args)  # type: ignore[arg-type]


def test_numbers_may_be_numpys_and_lists_stand_for_tuples() -> None:
    model = create_model(
        "t2t_vit_7",
        depth=np.int64(1),
        mlp_ratio=1,
        drop_path=np.float64(0.1),
        splits=[[7, 4, 2], [3, 2, 1], [3, 2, 1]],
    )
    assert model.config.splits == ((7, 4, 2), (3, 2, 1), (3, 2, 1))
    assert (model.config.depth, model.config.drop_path) == (1, 0.1)
    assert type(model.config.depth) is int


def test_the_smallest_image_is_said() -> None:
    model = create_model("t2t_vit_7", image_size=3, num_classes=2).eval()
    assert model(torch.randn(1, 3, 3, 3)).shape == (1, 2)
    with pytest.raises(UserError, match="at least 3×3"):
        create_model("t2t_vit_7", image_size=2)
    with pytest.raises(UserError, match="at least 3×3"):
        model(torch.randn(1, 3, 2, 9))
    with pytest.raises(UserError, match="at least 16×16"):
        create_model("vit_small_16", image_size=15)


def test_wrong_channels_say_what_to_do() -> None:
    model = create_model("t2t_vit_7_32")
    with pytest.raises(UserError, match="in_channels=1"):
        model(torch.randn(1, 1, 32, 32))


def test_an_input_that_is_no_batch_of_fractions_is_reported() -> None:
    model = create_model("t2t_vit_7_32", depth=1).eval()
    images = torch.zeros(1, 3, 32, 32)
    with pytest.raises(UserError, match=r"torch\.uint8, but the model takes floating"):
        model(images.byte())
    with pytest.raises(UserError, match=r"shape \(3, 32, 32\), .* images\[None\]"):
        model(images[0])


@pytest.mark.parametrize(
    "model_args",
    [
        {"num_classes": "ten"},
        {"num_classes": -1},
        {"image_size": "big"},
        {"in_channels": "x"},
        {"drop_path": 2.0},
    ],
)
def test_wrong_settings_of_timms_networks_are_reported(
    model_args: dict[str, Any],
) -> None:
    ((option, _),) = model_args.items()
    with pytest.raises(UserError, match=option):
        create_model("test_vit", **model_args)


def test_no_head_gives_features() -> None:
    model = create_model("t2t_vit_7_32", num_classes=0).eval()
    assert model(torch.randn(1, 3, 32, 32)).shape == (1, 256)


@pytest.mark.parametrize(
    ("name", "model_args"),
    [
        ("vgg11", {"drop_path": 0.1}),
        ("nest_tiny", {"image_size": (150, 150)}),
    ],
)
def test_what_a_network_of_timms_lacks_is_reported(
    name: str, model_args: dict[str, Any]
) -> None:
    ((option, value),) = model_args.items()
    with pytest.raises(UserError) as caught, torch.device("meta"):
        create_model(name, **model_args)
    assert f"timm cannot build {name} with {option}={value} (" in str(caught.value)


def test_distilled_heads_are_read_apart_and_together() -> None:
    model = create_model("t2t_vit_7_distilled", num_classes=3, image_size=32).eval()
    images = torch.randn(2, 3, 32, 32)
    both = model(images, separate_heads=True)
    torch.testing.assert_close(model(images), (both[0] + both[1]) / 2)
    with pytest.raises(UserError, match="distilled=True"):
        create_model("t2t_vit_7_32")(images, separate_heads=True)


def test_distilled_heads_read_the_mean_where_that_is_the_pool() -> None:
    model = create_model(
        "t2t_vit_7_distilled", num_classes=3, image_size=32, pool="mean"
    ).eval()
    images = torch.randn(2, 3, 32, 32)
    tokens = model.forward_features(images)
    both = model(images, separate_heads=True)
    torch.testing.assert_close(both[0], model.head(tokens[:, 2:].mean(1)))
    torch.testing.assert_close(both[1], model.distillation_head(tokens[:, 1]))
    torch.testing.assert_close(model(images), (both[0] + both[1]) / 2)


def test_a_model_of_ours_loads_neither_timm_nor_the_compiler() -> None:
    program = """import sys, torch, t2t
model = t2t.create_model("t2t_vit_7_32", num_classes=2, depth=1).eval()
with torch.inference_mode():
    model(torch.zeros(1, 3, 32, 32))
unneeded = {"timm", "torchvision", "torch._dynamo", "torch.distributed.tensor"}
assert not unneeded & sys.modules.keys(), unneeded & sys.modules.keys()
"""
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True)
