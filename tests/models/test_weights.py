"""Saving and loading: one file is all it takes, and published ones will do."""

import argparse
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import load_file, save_file

import t2t
from t2t.errors import UserError
from t2t.models.config import ModelConfig
from t2t.models.vit import VisionTransformer
from t2t.models.weights import load, load_weights, load_with_report, save

GOLDEN = Path(__file__).parents[1] / "golden"
SMALL = ModelConfig(
    dim=32,
    depth=2,
    num_heads=4,
    mlp_ratio=2,
    token_dim=16,
    num_classes=5,
    image_size=(32, 48),
)
GOLDEN_CONFIG = ModelConfig(
    dim=48, depth=3, num_heads=4, mlp_ratio=2, token_dim=16, image_size=(64, 64)
)


def logits(model, images):
    with torch.no_grad():
        return model.eval()(images)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.fixture
def golden():
    """A published checkpoint's tensors, its images and its logits."""
    tensors = load_file(GOLDEN / "t2t_performer.safetensors")
    weights = {
        name.removeprefix("weights."): tensor
        for name, tensor in tensors.items()
        if name.startswith("weights.")
    }
    return weights, tensors["input"], tensors["logits"]


@pytest.mark.parametrize(
    "model_args",
    [
        {},
        {"tokenizer": "t2t", "positions": "relative", "positions_at": "every_layer"},
        {"tokenizer": "patch", "positions": "learned_2d", "distilled": True},
        {"mixer": "linformer", "class_token": False, "pool": "mean"},
        {"wiring": "dense", "dense_stages": (1, 1), "growth": 8, "num_classes": 0},
        {"tokenizer": "hybrid", "stem": "resnet10t"},
    ],
)
def test_a_file_is_all_that_loading_needs(model_args, tmp_path):
    model = VisionTransformer(replace(SMALL, **model_args))
    names = tuple("abcde")[: model.config.num_classes]
    file = save(model, tmp_path / "run", name="mine", class_names=names)
    again, loaded = load_with_report(tmp_path / "run")
    assert file == tmp_path / "run" / "model.safetensors"
    assert again.config == model.config
    assert not again.training
    images = torch.randn(2, 3, 32, 48)
    assert torch.equal(logits(again, images), logits(model, images))
    assert (loaded.name, loaded.class_names, loaded.notes) == ("mine", names, ())


def test_networks_of_timm_are_built_again_from_their_file(tmp_path):
    model = t2t.create_model("resnet10t", num_classes=3, in_channels=1)
    save(model, tmp_path / "m.safetensors", extra={"mean": [0.5]})
    again, loaded = load_with_report(tmp_path / "m.safetensors")
    images = torch.randn(2, 1, 64, 64)
    assert torch.equal(logits(again, images), logits(model, images))
    assert (loaded.name, loaded.extra) == ("resnet10t", {"mean": [0.5]})
    other, loaded = load_with_report(tmp_path / "m.safetensors", num_classes=7)
    assert logits(other, images).shape == (2, 7)
    assert loaded.notes == ("The head for 3 classes was replaced by a new one for 7.",)


def test_a_model_that_its_settings_do_not_build_is_not_saved(tmp_path):
    model = timm.create_model("resnet10t", num_classes=3, stem_width=16)
    with pytest.raises(UserError, match=r"could not be loaded again: .* another shape"):
        save(model, tmp_path)
    with pytest.raises(UserError, match="is not a model of t2t or timm"):
        save(torch.nn.Linear(2, 2), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_failed_save_leaves_the_old_file(tmp_path, monkeypatch):
    model = VisionTransformer(SMALL)
    file = save(model, tmp_path)
    before = file.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    model.head.bias.data += 1
    with pytest.raises(UserError, match=r"could not be written \(No space left"):
        save(model, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]
    assert file.read_bytes() == before


@pytest.mark.parametrize("wrapper", ["", "module.", "_orig_mod.module."])
def test_published_checkpoints_load_safely(wrapper, golden, tmp_path):
    weights, images, expected = golden
    averaged = {wrapper + name: tensor for name, tensor in weights.items()}
    raw = {name: torch.zeros_like(tensor) for name, tensor in averaged.items()}
    content = {
        "epoch": 309,
        "arch": "t2t_vit_14",
        "args": argparse.Namespace(model="t2t_vit_14", lr=5e-4),
        "state_dict": raw,
        "state_dict_ema": averaged,
    }
    torch.save(content, tmp_path / "81.5.pth.tar")
    model, loaded = load_with_report(tmp_path / "81.5.pth.tar", model=GOLDEN_CONFIG)
    torch.testing.assert_close(logits(model, images), expected)
    assert model.config.num_classes == 10
    assert loaded.weights == "state_dict_ema"
    assert "(state_dict_ema)" in str(loaded)
    model, loaded = load_with_report(
        tmp_path / "81.5.pth.tar", model=GOLDEN_CONFIG, ema=False
    )
    assert loaded.weights == "state_dict"
    assert not logits(model, images).any()


def test_raw_weights_that_are_not_there_are_refused(golden, tmp_path):
    torch.save({"state_dict_ema": golden[0]}, tmp_path / "a.pth")
    with pytest.raises(UserError, match="EMA weights only"):
        load(tmp_path / "a.pth", model=GOLDEN_CONFIG, ema=False)


def test_bare_published_weights_load_into_a_model(golden, tmp_path):
    weights, images, expected = golden
    torch.save(weights, tmp_path / "bare.pth")
    model = VisionTransformer(replace(GOLDEN_CONFIG, num_classes=10))
    assert load_weights(model, tmp_path / "bare.pth").notes == ()
    assert model.config.positions == "sinusoid"
    torch.testing.assert_close(logits(model, images), expected)


def test_positions_that_are_not_the_sinusoid_are_kept(golden, tmp_path):
    weights, images, expected = golden
    other = weights["pos_embed"].flip(1)
    torch.save(weights | {"pos_embed": other}, tmp_path / "a.pth")
    model, loaded = load_with_report(tmp_path / "a.pth", model=GOLDEN_CONFIG)
    assert model.config.positions == "fixed"
    assert loaded.notes == ("Its positions, which are not the sinusoid, were kept.",)
    table = model.encoder.positions.tables[0].table
    assert torch.equal(table, other[0])
    assert not torch.allclose(logits(model, images), expected)


def test_a_file_trained_at_another_size_says_so_by_its_positions(golden, tmp_path):
    weights, *_ = golden
    torch.save(weights | {"pos_embed": torch.randn(1, 37, 48)}, tmp_path / "a.pth")
    model = load(tmp_path / "a.pth", model=GOLDEN_CONFIG)
    assert model.config.image_size == (96, 96)


def test_a_saved_file_is_readable_like_any_other(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.touch()
    model = t2t.create_model("t2t_vit_7_32", dim=16, depth=1, num_heads=1)
    file = t2t.save(model, tmp_path / "model.safetensors")
    assert file.stat().st_mode == plain.stat().st_mode


def test_the_same_weights_are_the_same_file(tmp_path):
    model = VisionTransformer(SMALL)
    files = set()
    for number in range(8):  # of its three notes in six orders, one is written
        file = tmp_path / f"{number}.safetensors"
        save(model, file, class_names=["a", "é", "\u007f", "\t", "d"])
        files.add(file.read_bytes())
    assert len(files) == 1
    kept = load_file(tmp_path / "0.safetensors")
    assert all(torch.equal(kept[key], own) for key, own in model.state_dict().items())
    assert load_with_report(tmp_path / "0.safetensors")[1].class_names[1] == "é"


def test_a_model_that_does_not_exist_is_named(tmp_path: Path) -> None:
    save_file({"head.weight": torch.zeros(3, 4)}, tmp_path / "a.safetensors")
    with pytest.raises(
        UserError, match=r"no model 't2t_vit_41'\. Did you mean t2t_vit"
    ):
        load(tmp_path / "a.safetensors", model="t2t_vit_41")


@pytest.mark.parametrize("name", ["x.pth", "x.pt", "x.PTH", "x.pth.tar", "x.onnx"])
def test_another_format_is_not_taken_for_a_folder(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"use .*x\.safetensors, or a folder"):
        save(VisionTransformer(SMALL), tmp_path / name)
    assert list(tmp_path.iterdir()) == []
    file = save(VisionTransformer(SMALL), tmp_path / "cifar10.t2t_vit_7")
    assert file == tmp_path / "cifar10.t2t_vit_7" / "model.safetensors"


@pytest.mark.parametrize(
    "change",
    [{"image_size": "big"}, {"num_classes": "ten"}, {"in_channels": 2.5}],
)
def test_wrong_changes_are_reported(change, tmp_path: Path) -> None:
    save(VisionTransformer(SMALL), tmp_path)
    ((option, _),) = change.items()
    with pytest.raises(UserError, match=f"{option} takes"):
        load(tmp_path, **change)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"class_names": [1, 2, 3, 4, 5]}, "class_names must be strings, not 1"),
        ({"model": 3}, "model=3 must be a name"),
    ],
)
def test_the_file_is_not_blamed_for_wrong_arguments(
    change, told, tmp_path: Path
) -> None:
    save(VisionTransformer(SMALL), tmp_path)
    with pytest.raises(UserError, match=told):
        load(tmp_path, **change)


def test_a_model_without_values_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"on the device meta and has no values"):
        save(VisionTransformer(SMALL).to("meta"), tmp_path / "a.safetensors")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_a_torchscript_program_is_reported_without_unsafe_advice(
    tmp_path: Path,
) -> None:
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), tmp_path / "a.pt")
    with pytest.raises(UserError, match=r"TorchScript program, not weights") as told:
        load(tmp_path / "a.pt")
    assert "weights_only" not in str(told.value)


@pytest.mark.parametrize("model", ["test_vit", "deit_tiny"])
def test_a_grid_that_is_no_square_is_reported(model: str, tmp_path: Path) -> None:
    network = timm.create_model(
        {"deit_tiny": "deit_tiny_patch16_224"}.get(model, model),
        num_classes=3,
        img_size=(96, 64),
    )
    torch.save(network.state_dict(), tmp_path / "a.pth")
    with pytest.raises(UserError, match="for 24 tokens, which is not a square"):
        load(tmp_path / "a.pth", model=model, image_size=32)
    load(tmp_path / "a.pth", model=model, image_size=(96, 64))


@pytest.mark.parametrize("key", ["net", "model_state_dict", "whatever"])
def test_weights_are_found_under_other_names(key, golden, tmp_path: Path) -> None:
    weights, images, expected = golden
    content = {key: weights, "acc": np.float64(98.3), "epoch": np.int64(59)}
    content["history"] = np.arange(4.0)
    torch.save(content, tmp_path / "ckpt.pth")
    model, loaded = load_with_report(tmp_path / "ckpt.pth", model=GOLDEN_CONFIG)
    torch.testing.assert_close(logits(model, images), expected)
    assert loaded.weights == key


def test_plain_values_may_stand_among_the_weights(golden, tmp_path: Path) -> None:
    weights, images, expected = golden
    content = {**weights, "epoch": 5, "acc": np.float32(1), "where": Path("runs")}
    torch.save(content, tmp_path / "ckpt.pth")
    model = load(tmp_path / "ckpt.pth", model=GOLDEN_CONFIG)
    torch.testing.assert_close(logits(model, images), expected)


def test_heads_of_token_labelling_are_left_out(golden, tmp_path: Path) -> None:
    weights, images, expected = golden
    more = {"aux_head.weight": torch.ones(10, 48), "aux_head.bias": torch.ones(10)}
    torch.save({**weights, **more, "total_ops": torch.ones(1)}, tmp_path / "a.pth")
    model, loaded = load_with_report(tmp_path / "a.pth", model=GOLDEN_CONFIG)
    torch.testing.assert_close(logits(model, images), expected)
    (note,) = loaded.notes
    assert note.startswith("aux_head.bias, aux_head.weight, total_ops were skipped: ")


def test_weights_of_timms_vits_fit_another_image_size(tmp_path: Path) -> None:
    network = timm.create_model("test_vit", num_classes=3)
    torch.save(network.state_dict(), tmp_path / "a.pth")
    model, loaded = load_with_report(
        tmp_path / "a.pth", model="test_vit", image_size=96
    )
    expected = timm.create_model("test_vit", num_classes=3, img_size=96)
    positions = timm.layers.resample_abs_pos_embed(network.pos_embed, (6, 6))
    expected.load_state_dict({**network.state_dict(), "pos_embed": positions})
    images = torch.randn(1, 3, 96, 96)
    assert torch.equal(logits(model, images), logits(expected, images))
    assert any("pos_embed was interpolated from" in note for note in loaded.notes)
    # And so does what we save of them.
    save(network, tmp_path / "b.safetensors", name="test_vit")
    model = load(tmp_path / "b.safetensors", image_size=96)
    assert torch.equal(logits(model, images), logits(expected, images))


def test_a_setting_that_shapes_do_not_show_is_reported(tmp_path: Path) -> None:
    save(VisionTransformer(SMALL), tmp_path)
    model = VisionTransformer(replace(SMALL, num_heads=2, pool="mean"))
    (note,) = load_weights(model, tmp_path).notes
    assert "made with num_heads=4 (here 2), pool='class' (here 'mean')" in note
