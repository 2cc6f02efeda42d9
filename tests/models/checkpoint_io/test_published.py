"""Published names: ViT and DeiT as timm has them, and what the golden files lack."""

import pytest
import timm
import torch
from torch import nn

import t2t
from t2t.models.checkpoint_io.adapt import adapt_weights, describe_differences
from t2t.models.checkpoint_io.published import translate
from t2t.models.config import ModelConfig
from t2t.models.vit import VisionTransformer
from t2t.models.weights import load_weights


def randomise(model: nn.Module) -> nn.Module:
    """timm's networks start with zeros in places; names could hide behind them."""
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.data.add_(0.02 * noise)
    return model.eval()


def largest_difference(ours: nn.Module, theirs: nn.Module, images) -> float:
    with torch.no_grad():
        expected = theirs(images)
        return float((ours(images) - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("deit_tiny_patch16_224", "deit_tiny"),
        ("deit_tiny_distilled_patch16_224", "deit_tiny_distilled"),
    ],
)
def test_gives_the_logits_of_timm(theirs, ours):
    reference = randomise(timm.create_model(theirs, img_size=64, depth=3))
    model = t2t.create_model(ours, image_size=64, depth=3).eval()
    assert adapt_weights(model, reference.state_dict()).notes == ()
    adapt_weights(model, reference.state_dict()).apply()
    assert largest_difference(model, reference, torch.randn(2, 3, 64, 64)) < 1e-5


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("vit_base_patch16_224", "vit_base_16"),
        ("vit_large_patch16_224", "vit_large_16"),
        ("vit_huge_patch14_224", "vit_huge_14"),
        ("deit_tiny_patch16_224", "deit_tiny"),
        ("deit_small_patch16_224", "deit_small"),
        ("deit_base_patch16_224", "deit_base"),
        ("deit_tiny_distilled_patch16_224", "deit_tiny_distilled"),
        ("deit_small_distilled_patch16_224", "deit_small_distilled"),
        ("deit_base_distilled_patch16_224", "deit_base_distilled"),
    ],
)
def test_has_all_tensors_of_timm(theirs, ours):
    with torch.device("meta"):
        reference = timm.create_model(theirs, num_classes=1000)
        model = t2t.create_model(ours)
    state = translate(reference.state_dict())
    assert describe_differences(state, model.state_dict()) == ""


def test_vit_base_layout_gives_the_logits_of_timm():
    reference = randomise(
        timm.create_model(
            "vit_base_patch16_224", img_size=32, depth=2, embed_dim=96, num_classes=7
        )
    )
    model = t2t.create_model(
        "vit_base_16", image_size=32, depth=2, dim=96, num_classes=7
    )
    adapt_weights(model, reference.state_dict()).apply()
    images = torch.randn(2, 3, 32, 32)
    assert largest_difference(model.eval(), reference, images) < 1e-5


def test_timms_weights_fit_our_vit_at_another_image_size(tmp_path):
    reference = randomise(timm.create_model("deit_tiny_patch16_224", depth=2))
    torch.save(reference.state_dict(), tmp_path / "deit.pth")
    model = t2t.create_model("deit_tiny", image_size=(96, 64), depth=2)
    loaded = load_weights(model.eval(), tmp_path / "deit.pth")
    assert loaded.notes == ("Positions were interpolated from 14×14 to 6×4 tokens.",)
    same = t2t.create_model("deit_tiny", depth=2).eval()
    load_weights(same, tmp_path / "deit.pth")
    images = torch.randn(1, 3, 96, 64)
    torch.testing.assert_close(model(images), same(images))


def test_convolution_tokens_are_three_convolutions():
    model = VisionTransformer(small(tokenizer="t2t_conv"))
    state = dict(model.state_dict())
    published = {
        ours_to_published_convolution(name): tensor for name, tensor in state.items()
    }
    assert published.keys() != state.keys()
    assert translate(published).keys() == state.keys()


def ours_to_published_convolution(name: str) -> str:
    fronts = {
        "tokenizer.convolutions.0": "tokens_to_token.soft_split0",
        "tokenizer.convolutions.1": "tokens_to_token.soft_split1",
        "tokenizer.convolutions.2": "tokens_to_token.project",
    }
    front, dot, kind = name.rpartition(".")
    return f"{fronts.get(front, front)}{dot}{kind}"


@pytest.mark.parametrize(
    "model_args",
    [
        {},
        {"tokenizer": "t2t"},
        {"tokenizer": "t2t_conv"},
        {"tokenizer": "patch", "positions": "learned_1d"},
        {"mixer": "ghost", "mlp": "ghost"},
        {"wiring": "dense", "dense_stages": (1, 1), "growth": 8},
        {"positions": "relative", "distilled": True},
    ],
)
def test_our_own_names_pass_unchanged(model_args):
    state = VisionTransformer(small(**model_args)).state_dict()
    translated = translate(state)
    assert translated.keys() == state.keys()
    assert all(torch.equal(translated[name], state[name]) for name in state)


def small(**model_args) -> ModelConfig:
    settings = {
        "dim": 48,
        "depth": 2,
        "num_heads": 4,
        "mlp_ratio": 3,
        "token_dim": 16,
        "num_classes": 5,
        "image_size": (32, 32),
    }
    return ModelConfig(**(settings | model_args))
