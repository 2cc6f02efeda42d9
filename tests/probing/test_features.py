"""Features: what the head reads, for every image, with names and labels."""

import csv
import errno
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from torch import nn

import t2t
from t2t.data.sources import open_source
from t2t.errors import UserError
from t2t.models.create import create_model
from t2t.models.trained import load_trained
from t2t.models.weights import save
from t2t.probing.features import pooled_features, save_features
from t2t.serving.predictor import Predictor

SMALL: dict[str, Any] = {"dim": 16, "depth": 1, "num_heads": 1, "token_dim": 8}


def extracted(weights: Path, data: Path | None = None, **options: Any) -> Any:
    return t2t.features(weights, data, device="cpu", **options)


@pytest.mark.parametrize("batch_size", [4, 256])
def test_features_are_what_the_head_reads(
    weights: Path, images: Path, batch_size: int
) -> None:
    seen: list[tuple[int, int]] = []
    found = extracted(
        weights,
        images,
        batch_size=batch_size,
        progress=lambda *counts: seen.append(counts),
    )
    assert found.values.shape == (13, 16)
    assert found.values.dtype == torch.float32
    assert (seen[-1], len(seen)) == ((13, 13), 4 if batch_size == 4 else 1)
    source = open_source(images)
    predictor = Predictor(weights, "cpu")
    assert (found.data, found.split, found.model) == (
        str(images),
        "val",
        "t2t_vit_7_32",
    )
    assert found.labels.tolist() == source.labels.tolist()
    assert found.classes == ("a", "b", "c")
    assert len({*found.names}) == 13
    for row, name in zip(found.values, found.names, strict=True):
        image = predictor.normalised(predictor.model_input(name))
        heads: list[torch.Tensor] = []
        hook = predictor.model.head.register_forward_pre_hook(
            lambda _, inputs, heads=heads: heads.append(inputs[0])
        )
        with torch.no_grad():
            predictor.model(image)
        hook.remove()
        torch.testing.assert_close(row, heads[0][0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {"class_token": True, "pool": "class"},
        {"class_token": True, "pool": "mean"},
        {"class_token": False, "pool": "none"},
    ],
    ids=str,
)
def test_every_pool_gives_one_feature(options: dict[str, Any]) -> None:
    model = create_model("t2t_vit_7_32", image_size=8, **SMALL, **options).eval()
    images = torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        tokens, found = model.forward_features(images), pooled_features(model, images)
    if options["pool"] == "class":
        expected = tokens[:, 0]
    else:
        expected = tokens[:, int(options["class_token"]) :].mean(1)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "resnet18"])
def test_timm_models_have_features(name: str) -> None:
    model = timm.create_model(name, num_classes=7).eval()
    images = torch.randn(2, 3, 224, 224)
    with torch.no_grad():
        found = pooled_features(model, images)
        assert found.shape == (2, model.num_features)
        head = model.get_classifier()
        torch.testing.assert_close(head(found), model(images), atol=1e-4, rtol=1e-4)


def test_a_network_of_another_kind_is_an_error() -> None:
    with pytest.raises(UserError, match="has no forward_features"):
        pooled_features(nn.Linear(3, 3), torch.zeros(1, 3, 8, 8))
    model = timm.create_model("resnet18", global_pool="").eval()
    with pytest.raises(UserError, match=r"pools its tokens to the shape \(1, 512"):
        pooled_features(model, torch.zeros(1, 3, 64, 64))


def test_weights_without_a_head_have_features(headless: Path, images: Path) -> None:
    with pytest.raises(UserError, match="has no head"):
        load_trained(headless)
    assert extracted(headless, images).values.shape == (13, 16)


def test_images_need_no_labels(weights: Path, tmp_path: Path) -> None:
    for number in range(5):
        Image.new("RGB", (20, 10), (50 * number, 9, 9)).save(tmp_path / f"{number}.png")
    found = extracted(weights, tmp_path)
    assert (found.classes, len(found), found.split) == ((), 5, "all")
    file, table = save_features(found, tmp_path / "f.npy")
    rows = [*csv.reader(table.read_text().splitlines())]
    assert rows[:2] == [["path", "label", "class"], [str(tmp_path / "0.png"), "", ""]]
    assert np.load(file).shape == (5, 16)


def test_files_hold_features_names_and_labels(
    weights: Path, own_images: Path, tmp_path: Path
) -> None:
    odd = own_images / "c" / 'od"d,\nname.png'
    (own_images / "c" / "02.png").rename(odd)
    (own_images / "b" / "broken.png").write_bytes(b"nothing")
    found = extracted(weights, own_images)
    assert found.damaged == (str(own_images / "b" / "broken.png"),)
    file, table = save_features(found, tmp_path / "f.npy")
    assert table == tmp_path / "f.csv"
    values = np.load(file)
    assert values.dtype == np.float32
    np.testing.assert_array_equal(values, found.values.numpy())
    rows = [*csv.DictReader(io.StringIO(table.read_text(), newline=""))]
    assert len(rows) == len(values) == 30
    assert {row["path"] for row in rows} >= {str(odd)}
    for row in rows:
        assert Path(row["path"]).parent.name == row["class"]
        assert row["label"] == str("abc".index(row["class"]))
    assert {path.name for path in tmp_path.iterdir()} == {"photos", "f.npy", "f.csv"}
    with pytest.raises(UserError, match="could not be written"):
        save_features(found, tmp_path / "absent" / "f.npy")


def test_a_full_disk_leaves_earlier_features_and_their_table(
    weights: Path, own_images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "f.npy").write_text("earlier")
    (tmp_path / "f.csv").write_text("path,label,class\nearlier")
    before = {file: file.read_text() for file in tmp_path.glob("f.*")}

    def full(*words: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(UserError, match=r"f\.npy could not be written"):
        save_features(extracted(weights, own_images), tmp_path / "f.npy")
    assert {file: file.read_text() for file in tmp_path.glob("*f.*")} == before


@pytest.mark.parametrize(
    ("split", "num"), [(None, 30), ("all", 30), ("val", 3), ("train", 27)]
)
def test_data_in_one_piece_is_used_whole_or_split(
    weights: Path, own_images: Path, split: str | None, num: int
) -> None:
    assert len(extracted(weights, own_images, split=split)) == num


def test_so_many_images_are_drawn_by_the_seed(weights: Path, images: Path) -> None:
    few, same, others = (
        extracted(weights, images, split="train", num_images=9, seed=seed)
        for seed in (0, 0, 1)
    )
    assert few.names == same.names != others.names
    assert torch.bincount(few.labels).tolist() == [3, 3, 3]


def test_nan_is_an_error(images: Path, tmp_path: Path) -> None:
    model = create_model("t2t_vit_7_32", num_classes=5, image_size=8, **SMALL)
    nn.init.constant_(model.norm.weight, float("nan"))
    path = save(model, tmp_path / "nan.safetensors", name="t2t_vit_7_32")
    with pytest.raises(UserError, match="NaN or infinity"):
        extracted(path, images)


def test_data_that_is_not_named_is_an_error(weights: Path) -> None:
    with pytest.raises(UserError, match="does not name its training data"):
        extracted(weights)


def test_several_labels_are_named_together(
    weights: Path, images: Path, tmp_path: Path
) -> None:
    names = sorted(path.relative_to(images) for path in images.rglob("*.png"))[:9]
    rows = [f"{name},{'a;b' if n % 2 else 'c'}" for n, name in enumerate(names)]
    table = tmp_path / "tags.csv"
    table.write_text("\n".join(["file,tags", *rows]))
    found = extracted(weights, images, labels=table, split="all")
    assert found.classes == ("c", "a;b")
    _, saved = save_features(found, tmp_path / "x.npy")
    assert saved.read_text().count(",a;b\n") == 4
    with pytest.raises(UserError, match="several labels, and a probe scores one"):
        t2t.probe(weights, data=images, labels=table, device="cpu")
