"""The published models' own values: tokens, logits and gradients."""

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from t2t.models import tokenizers
from t2t.models.checkpoint_io.adapt import adapt_weights
from t2t.models.checkpoint_io.published import translate
from t2t.models.config import ModelConfig
from t2t.models.vit import VisionTransformer
from t2t.ops.performer import performer_published
from t2t.ops.soft_split import soft_split_reference

GOLDEN = Path(__file__).parents[1] / "golden"
CASES = json.loads((GOLDEN / "index.json").read_text())
CHOICES = {
    "t2t_se": {"mixer": "attention_se"},
    "t2t_ghost": {"mixer": "ghost", "mlp": "ghost"},
}


def config_of(case: str) -> ModelConfig:
    facts = CASES[case]
    model_args = dict(CHOICES.get(case, {}))
    stages = tuple(facts.get("block_config", ()))
    if stages:
        model_args |= {"wiring": "dense", "growth": facts["growth_rate"]}
    tokens = {"performer": "t2t_performer", "transformer": "t2t"}
    return ModelConfig(
        dim=facts["embed_dim"],
        depth=sum(stages) or facts["depth"],
        num_heads=facts["num_heads"],
        mlp_ratio=facts["mlp_ratio"],
        tokenizer=tokens[facts["tokens_type"]],
        token_dim=facts.get("token_dim", 64),
        attention_scale=facts.get("qk_scale"),
        dense_stages=stages,
        num_classes=facts["num_classes"],
        image_size=(facts["img_size"], facts["img_size"]),
        **model_args,
    )


def relative_error(ours: Tensor, golden: Tensor) -> float:
    return float((ours.detach() - golden).abs().max() / golden.abs().max())


@pytest.fixture(params=CASES)
def case(request):
    return request.param


@pytest.fixture
def tensors(case):
    return load_file(GOLDEN / f"{case}.safetensors")


@pytest.fixture
def model(case, tensors):
    model = VisionTransformer(config_of(case)).eval()
    weights = {
        name.removeprefix("weights."): tensor
        for name, tensor in tensors.items()
        if name.startswith("weights.")
    }
    adapt_weights(model, weights).apply()
    # The published table is our sinusoid, so the model keeps computing it.
    assert model.config.positions == "sinusoid"
    return model


@pytest.mark.parametrize("path", ["fast", "as the paper reads"])
def test_agrees_with_published_values(path, case, tensors, model, monkeypatch):
    if path == "as the paper reads":
        monkeypatch.setattr(tokenizers, "soft_split", soft_split_reference)
        monkeypatch.setattr(tokenizers, "performer_attention", performer_published)

    tokens, _ = model.tokenize(tensors["input"])
    assert relative_error(tokens[:, 1:], tensors["tokens"]) < 1e-5

    logits = model(tensors["input"])
    assert relative_error(logits, tensors["logits"]) < 1e-5

    F.cross_entropy(logits, torch.tensor(CASES[case]["targets"])).backward()
    gradients = {name: value.grad for name, value in model.named_parameters()}
    for name in CASES[case]["grads"]:
        golden = tensors[f"grad.{name}"]
        (ours,) = translate({name: golden})
        assert relative_error(gradients[ours], golden) < 1e-5, name


def test_has_as_many_numbers(case, model):
    # The published count has the frozen ones in it: features and positions.
    tensors = [*model.parameters(), *model.buffers()]
    assert sum(tensor.numel() for tensor in tensors) == CASES[case]["params"]
