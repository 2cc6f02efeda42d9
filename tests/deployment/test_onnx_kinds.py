"""Every choice in the slots becomes an ONNX graph that gives what PyTorch gives."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import t2t
from t2t.models.blocks import MIXERS, MLPS
from t2t.models.config import ModelConfig
from t2t.models.positions import POSITIONS
from t2t.models.tokenizers import TOKENIZERS
from t2t.models.vit import VisionTransformer

CASES: dict[str, dict[str, Any]] = {
    "performer": {"mixer": "attention_se", "positions": "sinusoid"},
    "softmax": {
        "tokenizer": "t2t",
        "mixer": "ghost",
        "mlp": "ghost",
        "positions": "learned_2d",
    },
    "relative": {"tokenizer": "patch", "positions": "relative", "distilled": True},
    "linformer": {
        "tokenizer": "t2t_conv",
        "mixer": "linformer",
        "positions": "sinusoid_2d",
    },
}
MORE: dict[str, dict[str, Any]] = {
    "hybrid": {"tokenizer": "hybrid", "stem": "resnet18", "positions": "learned_1d"},
    "dense": {
        "wiring": "dense",
        "dense_stages": (1, 1),
        "depth": 2,
        "growth": 16,
        "positions": "fixed",
    },
    "axial": {"tokenizer": "patch", "mixer": "axial", "mlp": "depthwise"},
    "convolutions": {"tokenizer": "patch", "mixer": "conv_attention"},
    "pyramid": {
        "wiring": "pyramid",
        "pyramid_stages": (1, 1),
        "pyramid_mixers": ("axial", "attention"),
        "depth": 2,
        "mlp": "depthwise",
        "positions": "sinusoid_2d",
        "class_token": False,
        "pool": "mean",
        "splits": ((7, 2, 3), (3, 2, 1)),
    },
    "mean": {
        "tokenizer": "patch",
        "class_token": False,
        "pool": "mean",
        "positions": "none",
    },
    "every layer": {
        "tokenizer": "patch",
        "positions": "relative",
        "positions_at": "every_layer",
        "depth": 2,
    },
    "shared": {
        "tokenizer": "patch",
        "positions": "learned_1d",
        "positions_at": "shared",
        "depth": 2,
    },
}


def compare(
    choices: dict[str, Any], photos: list[str], folder: Path, *, any_size: bool
) -> None:
    torch.manual_seed(0)
    small = {"dim": 32, "depth": 1, "num_heads": 2, "mlp_ratio": 2, "token_dim": 16}
    small["splits"] = ((7, 4, 2), (3, 2, 1))
    config = ModelConfig(
        **{**small, "num_classes": 7, "image_size": (48, 48), "patch_size": 8} | choices
    )
    model = VisionTransformer(config)
    with torch.no_grad():
        for weight in model.parameters():  # as far from its start as training takes it
            weight.add_(0.1 * torch.randn_like(weight))
    nn.init.normal_(model.head.weight)
    file = t2t.save(model, folder / "weights.safetensors")
    report = t2t.export(
        file,
        to="onnx",
        out=folder / "model.onnx",
        images=photos,
        dynamic_image_size=any_size,
    )
    assert report.parity.largest_difference < 1e-4
    assert report.parity.largest_output > 1


@pytest.mark.parametrize("name", CASES)
def test_a_choice_is_exported(name: str, photos: list[str], tmp_path: Path) -> None:
    # Graphs for any size take several times as long to trace.
    compare(CASES[name], photos, tmp_path, any_size=name == "relative")


@pytest.mark.slow
@pytest.mark.parametrize("name", [*MORE, *CASES])
def test_another_choice_is_exported(
    name: str, photos: list[str], tmp_path: Path
) -> None:
    compare({**CASES, **MORE}[name], photos, tmp_path, any_size=True)


def test_every_choice_is_among_them() -> None:
    default = {"tokenizer": "t2t_performer", "mixer": "attention", "mlp": "mlp"}
    for slot, registry in {
        "tokenizer": TOKENIZERS,
        "positions": POSITIONS,
        "mixer": MIXERS,
        "mlp": MLPS,
    }.items():
        cases = [default, *CASES.values(), *MORE.values()]
        tried = {case[slot] for case in cases if slot in case}
        assert tried >= set(registry.built_in), slot
