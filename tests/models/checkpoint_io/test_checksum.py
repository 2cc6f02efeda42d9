"""Files of ours carry a checksum, and NaN weights are named."""

import logging
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import t2t
from t2t.analysis.summary import summarise
from t2t.errors import UserError
from t2t.models.builtin import builtin_file
from t2t.models.checkpoint_io.checksum import checksum
from t2t.models.weights import load, load_with_report, save

SMALL = {"dim": 16, "depth": 1, "num_heads": 1, "token_dim": 8, "image_size": 16}


def small(**model_args):
    return t2t.create_model("t2t_vit_7_32", num_classes=2, **{**SMALL, **model_args})


@pytest.mark.parametrize("place", [0.02, 0.3, 0.6, 0.99, "name", "class", "crc32"])
def test_a_flipped_bit_is_named(place, tmp_path: Path) -> None:
    file = save(small(), tmp_path, name="t2t_vit_7_32", class_names=["cat", "dog"])
    content = bytearray(file.read_bytes())
    where = {
        "name": content.index(b"t2t_vit_7_32") + 8,
        "class": content.index(b"cat"),
        "crc32": content.index(b'"crc32":"') + 9,
    }
    at = where[place] if isinstance(place, str) else int(place * len(content))
    content[at] ^= 1
    file.write_bytes(content)
    with pytest.raises(UserError, match=r"damaged.*copy it again"):
        load(file)


def test_a_file_without_a_checksum_loads(tmp_path: Path) -> None:
    model = small()
    file = save(model, tmp_path / "a.safetensors")
    with safe_open(file, "pt") as content:
        metadata = {k: v for k, v in content.metadata().items() if k != "crc32"}
    save_file(load_file(file), tmp_path / "b.safetensors", metadata)
    again = load(tmp_path / "b.safetensors").state_dict()
    assert all(torch.equal(own, again[key]) for key, own in model.state_dict().items())


def test_the_model_that_ships_has_a_checksum() -> None:
    with safe_open(builtin_file(), "pt") as content:
        told = content.metadata()["crc32"]
    assert checksum(builtin_file(), told) == told


def test_a_checksum_in_a_class_name_is_not_taken_for_the_files(tmp_path: Path) -> None:
    names = ['"crc32":"00000000"', "crc32"]
    save(small(), tmp_path, class_names=names)
    assert load_with_report(tmp_path)[1].class_names == tuple(names)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_nan_weights_are_named(value, dtype, tmp_path: Path, caplog) -> None:
    model = small().to(dtype)
    model.norm.bias.data[3] = value
    file = str(save(model, tmp_path / "a.safetensors", name="t2t_vit_7_32"))
    with caplog.at_level(logging.WARNING, logger="t2t"):
        _, loaded = load_with_report(file)
    (note,) = loaded.notes
    assert "NaN or infinity in 1 of its tensors (norm.bias)" in note
    assert note in caplog.text
    assert loaded.non_finite == ("norm.bias",)
    assert summarise(file, {}).notes == (note,)
    assert summarise(file, {}).as_json()["notes"] == [note]


def test_large_numbers_of_half_precision_are_finite(tmp_path: Path) -> None:
    model = small().half()
    model.head.weight.data.fill_(60_000)
    save(model, tmp_path)
    assert load_with_report(tmp_path)[1].notes == ()


def test_a_nan_head_that_is_replaced_is_not_reported(tmp_path: Path) -> None:
    model = small()
    model.head.bias.data.fill_(float("nan"))
    save(model, tmp_path)
    assert load_with_report(tmp_path, num_classes=3)[1].non_finite == ()
