"""Damaged and hostile files are refused in a sentence, fast and in little memory."""

import json
import pickle
import random
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import t2t
from t2t.analysis.summary import summarise
from t2t.errors import UserError
from t2t.models.trained import load_trained
from t2t.models.weights import load, save

SMALL = {"dim": 16, "depth": 1, "num_heads": 1, "token_dim": 8, "image_size": 16}


def small(**model_args):
    return t2t.create_model("t2t_vit_7_32", num_classes=2, **{**SMALL, **model_args})


def refused(file: Path) -> str:
    """What every way to a model says of a file that it refuses."""
    with pytest.raises(UserError) as caught:
        load(file)
    for way in (load_trained, lambda path: summarise(str(path), {})):
        with pytest.raises(UserError):
            way(file)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def rewritten(file: Path, part: str, key: str, value: Any) -> Path:
    """A file of ours whose description has another value."""
    with safe_open(file, "pt") as content:
        about = json.loads(content.metadata()["t2t"])
    if part:
        about[part][key] = value
    else:
        about[key] = value
    save_file(load_file(file), file, {"t2t": json.dumps(about)})
    return file


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("splits", [[3, 1], [3, 2, 1]]),
        ("splits", []),
        ("splits", [[3, 1, 1]] * 10_000),
        ("splits", "many"),
        ("splits", [[0, 0, 0]] * 3),
        ("image_size", [10**6, 10**6]),
        ("image_size", [4096, 4096]),
        ("image_size", [-1, 5]),
        ("image_size", None),
        ("depth", 10**7),
        ("depth", 2),
        ("depth", "7"),
        ("dim", 10**9),
        ("dim", 10**30),
        ("num_heads", 5),
        ("mlp_ratio", 1e300),
        ("mlp_ratio", float("nan")),
        ("attention_scale", float("nan")),
        ("tokenizer", "none"),
        ("tokenizer", 7),
        ("positions", {}),
        ("num_classes", 10**12),
        ("token_dim", 0),
        ("class_token", "yes"),
        ("dense_stages", [10**9, 1 - 10**9]),
        ("wiring", "dense"),
        ("norm_eps", None),
    ],
)
def test_a_config_is_checked_against_the_tensors(key, value, tmp_path: Path) -> None:
    file = save(small(), tmp_path / "a.safetensors", name="t2t_vit_7_32")
    message = refused(rewritten(file, "config", key, value))
    assert str(file) in message


@pytest.mark.parametrize(
    ("part", "key", "value"),
    [
        ("", "extra", 5),
        ("", "extra", None),
        ("", "config", 5),
        ("", "config", []),
        ("", "settings", "none"),
        ("", "class_names", 5),
        ("", "class_names", [1, 2]),
        ("", "class_names", "ab"),
        ("", "name", 5),
        ("", "name", "t" * 10**6),
        ("extra", "image_size", "big"),
        ("extra", "image_size", [10**6, 10**6]),
        ("extra", "mean", 5),
        ("extra", "mean", ["a", "b", "c"]),
        ("extra", "std", [0.0, 0.1, 0.1]),
        ("extra", "crop_fraction", 1e-9),
        ("extra", "channels", "three"),
        ("extra", "seed", "x"),
        ("extra", "data", 5),
    ],
)
def test_a_description_is_checked_by_itself(part, key, value, tmp_path: Path) -> None:
    file = save(small(), tmp_path / "a.safetensors", name="t2t_vit_7_32")
    assert "damaged description" in refused(rewritten(file, part, key, value))


def test_metadata_that_is_no_description_is_refused(tmp_path: Path) -> None:
    for number, text in enumerate(["5", "[" * 100_000, "{}", "9" * 5000, "null"]):
        file = tmp_path / f"{number}.safetensors"
        save_file({"a": torch.zeros(1)}, file, {"t2t": text})
        assert "damaged description" in refused(file)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("name", "vit_giant_patch14_dinov2"),  # which would take 4 GB to build
        ("name", "hf-hub:nobody/nothing"),
        ("name", 5),
        ("num_classes", 10**12),
        ("num_classes", "ten"),
        ("in_channels", -1),
        ("image_size", "big"),
        ("image_size", [10**6, 10**6]),
        ("drop_path", "x"),
        ("unheard", "of"),
    ],
)
def test_settings_of_timm_are_checked_too(key, value, tmp_path: Path) -> None:
    model = timm.create_model("test_vit", num_classes=2)
    file = save(model, tmp_path / "a.safetensors", name="test_vit")
    assert str(file) in refused(rewritten(file, "settings", key, value))


def test_numbers_of_mean_and_channels_agree(tmp_path: Path) -> None:
    save(small(), tmp_path, extra={"mean": [0.5], "std": [0.5]})
    with pytest.raises(UserError, match="images of 3 channels, but its mean has 1"):
        load_trained(tmp_path)


def state() -> dict[str, torch.Tensor]:
    return t2t.create_model("t2t_vit_7", num_classes=2).state_dict()


@pytest.mark.parametrize(
    "content",
    [
        {0: torch.zeros(2), 1: torch.zeros(3)},
        {"state_dict": {0: torch.zeros(2)}},
        {"state": {0: {"exp_avg": torch.zeros(2)}}, "param_groups": []},
        {"state_dict": {"a": [torch.zeros(1)]}},
        {"state_dict": {}},
        {("a", 1): torch.zeros(2)},
        {"a": {"x": torch.zeros(1)}, "b": {"x": torch.zeros(1)}},
    ],
)
def test_what_is_not_tensors_by_name_is_described(content, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "a.pth")
    assert "holds no weights: expected tensors by name" in refused(tmp_path / "a.pth")


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("encoder.blocks.0.norm1.weight", torch.tensor(1.0)),
        ("encoder.blocks.0.norm1.weight", torch.zeros(256, dtype=torch.int64)),
        ("encoder.blocks.0.norm1.weight", torch.zeros(256, dtype=torch.complex64)),
        ("encoder.blocks.0.norm1.weight", torch.zeros(256).to_sparse()),
        ("encoder.blocks.0.norm1.weight", torch.zeros(256, device="meta")),
        ("encoder.blocks.0.norm1.weight", torch.zeros(1).expand(10**12)),
        ("prefix", torch.zeros(0)),
        ("head.weight", torch.tensor(1.0)),
        ("pos_embed", torch.tensor(1.0)),
        ("pos_embed", torch.zeros(1, 10**6, 1)),
        ("pos_embed", torch.zeros(1, 197, 5)),
        ("cls_token", torch.zeros(3)),
        (f"blocks.{'9' * 5000}.norm1.weight", torch.zeros(3)),
    ],
)
def test_odd_tensors_are_refused(name, tensor, tmp_path: Path) -> None:
    torch.save({**state(), name: tensor}, tmp_path / "a.pth")
    with pytest.raises(UserError, match=str(tmp_path)):
        load(tmp_path / "a.pth")


def test_an_archive_that_unpacks_without_end_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.pth"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/data.pkl", pickle.dumps({}))
        archive.writestr("a/data/0", bytes(10**8))
    assert "claims to unpack to 100,0" in refused(file)


@pytest.mark.parametrize("kind", ["legacy", "zip", "safetensors"])
def test_flipped_and_cut_bytes_never_make_a_traceback(kind, tmp_path: Path) -> None:
    file = tmp_path / ("a.safetensors" if kind == "safetensors" else "a.pth")
    if kind == "safetensors":
        save_file(small().state_dict(), file)
    else:
        torch.save(
            {"state_dict": small().state_dict(), "epoch": 3, "arch": "t2t_vit_7_32"},
            file,
            _use_new_zipfile_serialization=kind == "zip",
        )
    whole = file.read_bytes()
    draw = random.Random(0)
    for number in range(40):
        content = bytearray(whole)
        # Most of a small file is its names and shapes, at either end.
        near = draw.choice([draw.randrange(3000), -1 - draw.randrange(3000)])
        for _ in range(draw.choice([1, 1, 8])):
            at = (near + draw.randrange(64)) % len(content)
            content[at] = draw.randrange(256)
        if number % 4 == 0:
            del content[draw.randrange(len(content)) :]
        file.write_bytes(content)
        with suppress(UserError):  # some numbers may change without harm
            load(file, model="t2t_vit_7_32")
