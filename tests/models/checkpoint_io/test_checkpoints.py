"""Files read whole or refused, and never run."""

import json
import os
import pickle

import pytest
import timm
import torch
from safetensors.torch import save_file

from t2t.errors import UserError
from t2t.models.config import ModelConfig
from t2t.models.vit import VisionTransformer
from t2t.models.weights import load, load_weights, save

SMALL = ModelConfig(
    dim=32,
    depth=2,
    num_heads=4,
    mlp_ratio=2,
    token_dim=16,
    num_classes=5,
    image_size=(32, 48),
)


def logits(model, images):
    with torch.no_grad():
        return model.eval()(images)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


class Malicious:
    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return (os.mkdir, (str(self.file),))


@pytest.mark.parametrize("legacy", [True, False])
def test_pickled_code_is_never_run(legacy, tmp_path):
    file, trace = tmp_path / "a.pth.tar", tmp_path / "was here"
    content = {"state_dict": {"a": torch.zeros(1)}, "args": Malicious(trace)}
    torch.save(content, file, _use_new_zipfile_serialization=not legacy)
    with pytest.raises(UserError, match=r"contains \S*mkdir, which is code") as caught:
        load(file)
    assert "weights_only" not in str(caught.value)
    assert not trace.exists()
    (tmp_path / "b.pth").write_bytes(pickle.dumps(Malicious(trace)))
    with pytest.raises(UserError):
        load(tmp_path / "b.pth")
    assert not trace.exists()


@pytest.mark.parametrize("keep", [0, 5, 100, 0.5, -1])
@pytest.mark.parametrize("kind", ["safetensors", "pth"])
def test_a_truncated_file_is_named(kind, keep, tmp_path):
    file = tmp_path / f"model.{kind}"
    model = VisionTransformer(SMALL)
    if kind == "pth":
        torch.save({"state_dict": model.state_dict()}, file)
    else:
        save(model, file)
    content = file.read_bytes()
    length = int(len(content) * keep) if isinstance(keep, float) else keep
    file.write_bytes(content[:length])
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(UserError, match=str(file)):
        load_weights(model, file)
    after = model.state_dict()
    assert all(torch.equal(after[name], before[name]) for name in before)


def test_foreign_files_are_named(tmp_path):
    network = timm.create_model("resnet10t", num_classes=3)
    save_file(network.state_dict(), tmp_path / "resnet.safetensors")
    with pytest.raises(UserError, match=r"is not of t2t, nor .* holds bn1.bias"):
        load(tmp_path / "resnet.safetensors")
    model = load(tmp_path / "resnet.safetensors", model="resnet10t")
    images = torch.randn(1, 3, 64, 64)
    assert torch.equal(logits(model, images), logits(network, images))
    (tmp_path / "page.pth").write_text("<!doctype html>")
    with pytest.raises(UserError, match="is text, not weights"):
        load(tmp_path / "page.pth")
    (tmp_path / "note.pth").write_text("hi\n")
    with pytest.raises(UserError, match="make no sense as a PyTorch file"):
        load(tmp_path / "note.pth")
    torch.save({"optimizer": {"lr": 1}}, tmp_path / "optimizer.pth")
    with pytest.raises(UserError, match=r"holds no weights: .* found optimizer"):
        load(tmp_path / "optimizer.pth")
    torch.save([1, 2], tmp_path / "list.pth")
    with pytest.raises(UserError, match="holds a list"):
        load(tmp_path / "list.pth")
    with pytest.raises(UserError, match="There is no file"):
        load(tmp_path / "absent.pth")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"has no model\.safetensors"):
        load(tmp_path / "empty")


def test_a_newer_files_options_are_named(tmp_path):
    text = json.dumps({"config": {"dim": 8, "flavour": "sweet"}, "class_names": []})
    save_file({"a": torch.zeros(1)}, tmp_path / "a.safetensors", {"t2t": text})
    with pytest.raises(UserError, match=r"does not know \(flavour\); update t2t"):
        load(tmp_path / "a.safetensors")
    save_file({"a": torch.zeros(1)}, tmp_path / "b.safetensors", {"t2t": "{"})
    with pytest.raises(UserError, match=r"damaged description .* copy it again\."):
        load(tmp_path / "b.safetensors")
