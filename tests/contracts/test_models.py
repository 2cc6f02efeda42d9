"""What every model of the zoo promises, at a size that two cores can afford."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from t2t.models.config import ModelConfig
from t2t.models.create import create_model
from t2t.models.vit import VisionTransformer
from t2t.models.weights import load, save
from t2t.models.zoo import CONFIGS

SIDE = 48


def small_form(config: ModelConfig) -> ModelConfig:
    """The same slots, narrower and shallower: every name is tested in seconds."""
    small = {
        "dim": 32 if config.mixer == "ghost" else 16,
        "num_heads": 4,
        "mlp_ratio": 3,
        "token_dim": 16,
        "depth": min(config.depth, 3),
        "num_classes": 5,
        "image_size": (SIDE, SIDE),
        "stem": "resnet10t",
        "linformer_dim": 4,
    }
    if config.mixer == "attention_se":
        small["dim"] = 192  # few squeezed channels may all be switched off
    if config.wiring == "dense":
        small |= {"dense_stages": (1, 1, 1), "growth": 32, "dim": 32}
    if config.wiring == "pyramid":
        small["pyramid_stages"] = (1, 1, 1)
        small["pyramid_mixers"] = config.pyramid_mixers[:3]
    if config.patch_size == 14:
        small["patch_size"] = 7
    return replace(config, **small)  # type: ignore[arg-type]


# Models that differ in size alone have one small form.
FORMS = {small_form(CONFIGS[name]): name for name in reversed(CONFIGS)}


def images(batch: int, height: int = SIDE, width: int = SIDE) -> torch.Tensor:
    generator = torch.Generator().manual_seed(batch + height + width)
    return torch.randn(batch, 3, height, width, generator=generator)


@pytest.fixture(params=FORMS, ids=FORMS.values())
def model(request: pytest.FixtureRequest) -> VisionTransformer:
    torch.manual_seed(0)
    return VisionTransformer(request.param)


def test_shape_and_finite(model: VisionTransformer) -> None:
    logits = model(images(2))
    assert logits.shape == (2, 5)
    assert logits.isfinite().all()


def test_every_trainable_parameter_gets_a_gradient(model: VisionTransformer) -> None:
    model.train()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):  # a ResNet's branches start switched off
            nn.init.ones_(module.weight)
    model(images(4)).square().sum().backward()
    without = [
        name
        for name, parameter in model.named_parameters()
        if parameter.grad is None or not parameter.grad.any()
    ]
    assert without == []


def test_no_leakage_between_samples(model: VisionTransformer) -> None:
    model.eval()
    batch = images(3).requires_grad_()
    model(batch)[1].sum().backward()
    assert batch.grad is not None
    assert batch.grad[1].any()
    assert not batch.grad[[0, 2]].any()


def test_evaluation_is_deterministic(model: VisionTransformer) -> None:
    model.eval()
    batch = images(2)
    torch.testing.assert_close(model(batch), model(batch), rtol=0, atol=0)


@pytest.mark.parametrize("size", [(64, 48), (53, 75)])
def test_another_image_size_at_run_time(
    model: VisionTransformer, size: tuple[int, int]
) -> None:
    model.eval()
    assert model(images(1, *size)).isfinite().all()


def test_another_image_size_at_construction(model: VisionTransformer) -> None:
    other = VisionTransformer(replace(model.config, image_size=(64, 80))).eval()
    assert other(images(1, 64, 80)).shape == (1, 5)
    assert other(images(1)).isfinite().all()


@pytest.mark.parametrize("in_channels", [1, 5])
def test_other_channels(model: VisionTransformer, in_channels: int) -> None:
    other = VisionTransformer(replace(model.config, in_channels=in_channels)).eval()
    assert other(torch.randn(1, in_channels, SIDE, SIDE)).shape == (1, 5)


def test_saved_and_loaded_it_says_the_same(
    model: VisionTransformer, tmp_path: Path
) -> None:
    model.eval()
    again = load(save(model, tmp_path / "model.safetensors"))
    assert again.config == model.config
    torch.testing.assert_close(again(images(2)), model(images(2)), rtol=0, atol=0)


def test_checkpointing_changes_nothing(model: VisionTransformer) -> None:
    model.eval()  # no stochastic depth, no dropout
    batch = images(2)
    model(batch).sum().backward()
    expected = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    model.set_grad_checkpointing()
    model.encoder.train()
    model(batch).sum().backward()
    actual = [p.grad for p in model.parameters() if p.grad is not None]
    torch.testing.assert_close(actual, expected)


def test_timm_names_come_through_the_same_call() -> None:
    model = create_model("mobilenet_v2", num_classes=3, in_channels=1).eval()
    assert isinstance(model, nn.Module)
    assert model(torch.randn(1, 1, 64, 64)).shape == (1, 3)
    teacher = create_model("regnety_002", num_classes=4).eval()
    assert teacher(images(1, 64, 64)).shape == (1, 4)
