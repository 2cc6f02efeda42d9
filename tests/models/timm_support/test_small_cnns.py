"""timm's CNNs at 32 pixels."""

import subprocess
import sys
from pathlib import Path

import pytest
import timm
import torch

import t2t
from t2t.errors import UserError
from t2t.models.timm_support.small_cnns import SMALL_CNNS


@pytest.mark.parametrize("module", ["entry_points", "small_cnns"])
def test_a_module_that_imports_timm_first_registers_all_models(module: str) -> None:
    code = (
        f"import t2t.models.timm_support.{module}; import timm; "
        "print(timm.is_model('t2t_vit_14'), timm.is_model('resnet18_32'))"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "True True\n"


@pytest.mark.parametrize("name", SMALL_CNNS)
def test_only_the_first_strides_differ_from_timm(name: str) -> None:
    network = t2t.create_model(name, num_classes=7, drop_path=0.1).eval()
    original = timm.create_model(SMALL_CNNS[name][1], num_classes=7).eval()
    images = torch.randn(2, 3, 32, 32)
    # 32 px end in 4×4 places; as published they would end in one.
    assert network.forward_features(images).shape[2:] == (4, 4)
    assert original.forward_features(images).shape[2:] == (1, 1)
    assert network(images).shape == (2, 7)
    ours = {key: value.shape for key, value in network.state_dict().items()}
    theirs = {key: value.shape for key, value in original.state_dict().items()}
    changed = {key for key in ours if ours[key] != theirs[key]}
    assert ours.keys() == theirs.keys()
    assert changed == ({"conv1.weight"} if name.startswith("resnet") else set())


def test_they_have_ten_classes_by_default() -> None:
    assert t2t.create_model("resnet18_32").num_classes == 10
    assert t2t.create_model("resnet18_32", num_classes=3).num_classes == 3
    assert t2t.create_model("resnet18").num_classes == 1000


@pytest.mark.parametrize("name", SMALL_CNNS)
def test_channels_of_a_place_lie_together(name: str) -> None:
    seen: list[torch.Tensor] = []
    network = t2t.create_model(name).eval()
    for layer in network.modules():
        if isinstance(layer, torch.nn.Conv2d):
            layer.register_forward_hook(lambda *about: seen.append(about[2]))
    with torch.no_grad():
        network(torch.randn(2, 3, 32, 32))
    interleaved = torch.channels_last
    assert all(image.is_contiguous(memory_format=interleaved) for image in seen)


def test_they_are_saved_and_loaded_by_name(tmp_path: Path) -> None:
    network = t2t.create_model("mobilenetv2_32", num_classes=4).eval()
    file = t2t.save(network, tmp_path / "small.safetensors", name="mobilenetv2_32")
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(t2t.load(file)(images), network(images))


@pytest.mark.parametrize("name", SMALL_CNNS)
def test_their_heads_are_known_as_heads(name: str, tmp_path: Path) -> None:
    network = t2t.create_model(name, num_classes=4)
    file = t2t.save(network, tmp_path / "small.safetensors")
    assert t2t.load(file, num_classes=3).num_classes == 3
    torch.save(network.state_dict(), tmp_path / "unnamed.pth")
    assert t2t.load(tmp_path / "unnamed.pth", model=name).num_classes == 4


def test_there_are_no_hosted_weights() -> None:
    with pytest.raises(UserError, match="no hosted weights of resnet18_32"):
        timm.create_model("resnet18_32", pretrained=True)


@pytest.mark.parametrize("name", SMALL_CNNS)
def test_features_have_the_strides_that_they_say(name: str) -> None:
    features = timm.create_model(name, features_only=True).eval()
    maps = features(torch.randn(1, 3, 32, 32))
    strides = [32 // image.shape[-1] for image in maps]
    assert features.feature_info.reduction() == strides == [1, 1, 2, 4, 8]
    network = timm.create_model(name)
    assert network.default_cfg["pool_size"] == (4, 4)
    assert f"{network.default_cfg['first_conv']}.weight" in network.state_dict()
