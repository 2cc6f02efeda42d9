"""timm's pre-trained weights by name, without a network: from a cache, or refused."""

import json
from pathlib import Path

import huggingface_hub
import pytest
import timm
import torch
from safetensors.torch import save_file

from t2t.errors import UserError
from t2t.models.checkpoint_io import resolve, timm_pretrained
from t2t.models.checkpoint_io.checkpoints import read_checkpoint
from t2t.models.pretrained import read_pretrained
from t2t.models.trained import load_trained
from t2t.models.weights import load

PAGE = "https://huggingface.co"


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> torch.nn.Module:
    """timm's test_vit, whose weights are in the cache of the hub."""
    torch.manual_seed(0)
    model = timm.create_model("test_vit")
    file = tmp_path / "model.safetensors"
    save_file(model.state_dict(), file)
    asked: list[str] = []

    def find(repository: str, name: str, revision: str | None = None) -> str:
        asked.append(repository)
        return str(file)

    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", find)
    monkeypatch.setattr(timm_pretrained, "why_unreachable", unexpected)
    return model


def unexpected(address: str) -> str:
    raise AssertionError("The network was asked.")


@pytest.mark.parametrize("name", ["test_vit", "test_vit.r160_in1k"])
def test_cached_weights_need_no_network(name: str, cached: torch.nn.Module) -> None:
    loaded = load_trained(name)
    images = torch.rand(1, 3, 160, 160)
    torch.testing.assert_close(loaded.model(images), cached.eval()(images))
    assert loaded.class_names[0] == "n01440764"
    assert (loaded.image_size, loaded.crop_fraction) == ((160, 160), 0.95)
    assert loaded.mean == (0.5, 0.5, 0.5)
    start = read_pretrained(name)
    assert (start.model, start.is_ours, start.image_size) == (
        "test_vit",
        False,
        (160, 160),
    )


def test_a_server_out_of_reach_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        huggingface_hub, "try_to_load_from_cache", lambda *_, **__: None
    )
    monkeypatch.setattr(timm_pretrained, "why_unreachable", lambda address: address)
    with pytest.raises(UserError) as told:
        load("resnet50")
    assert str(told.value) == (
        f"The pre-trained weights of resnet50 could not be downloaded ({PAGE}): check "
        "the network, or give a local file."
    )


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("t2t_vit_14", "no weights of it are hosted"),
        ("test_vit.nothing", "timm has test_vit.r160_in1k; give"),
        ("resnet18_32", "timm has none of this model"),
        ("resnet5O", "There is no file resnet5O; give .* Did you mean resnet50"),
        ("bultin", "Did you mean builtin"),
        ("nowhere.pth", "There is no file nowhere.pth; give a file"),
    ],
)
def test_names_without_weights_are_refused(name: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        read_checkpoint(name)


def test_a_file_comes_before_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(timm_pretrained, "read_timm", unexpected)
    save_file({"x": torch.zeros(1)}, "resnet50")
    assert list(read_checkpoint("resnet50").tensors) == ["x"]


def test_a_timm_model_on_the_hub_is_described_by_its_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = timm.create_model("test_vit", num_classes=3)
    file = tmp_path / "model.safetensors"
    save_file(model.state_dict(), file)
    config = {
        "architecture": "test_vit",
        "num_classes": 3,
        "label_names": ["a", "b", "c"],
        "pretrained_cfg": {
            "classifier": "head",
            "mean": [0.1, 0.2, 0.3],
            "std": [0.4, 0.5, 0.6],
            "crop_pct": 0.8,
            "input_size": [3, 160, 160],
        },
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr(resolve, "from_hub", lambda name: file)
    loaded = load_trained("hf-hub:owner/name")
    assert loaded.class_names == ("a", "b", "c")
    assert (loaded.mean, loaded.crop_fraction) == ((0.1, 0.2, 0.3), 0.8)
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(UserError, match="no model of the zoo"):
        load("hf-hub:owner/name")
