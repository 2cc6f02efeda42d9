"""A folder for timm and the hub, with a card that the hub understands."""

import json
from pathlib import Path

import pytest
import timm
import torch
from huggingface_hub import ModelCard
from PIL import Image

import t2t
from t2t.deployment import hub_folder
from t2t.deployment.model_card import KnownAccuracy, limits
from t2t.errors import UserError
from t2t.models.create import create_model
from t2t.models.positions import POSITIONS, SinusoidPositions
from t2t.models.trained import load_trained


def test_timm_and_we_load_the_folder(
    weights: Path, photos: list[str], tmp_path: Path
) -> None:
    folder = tmp_path / "mine-timm"
    report = t2t.export(
        weights, to="timm", out=folder, images=photos, license="apache-2.0"
    )
    assert "states no accuracy" in report.accuracy
    images = torch.randn(2, 3, 24, 24)
    expected = load_trained(weights).model(images)
    by_timm = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    torch.testing.assert_close(by_timm(images), expected)
    torch.testing.assert_close(t2t.load(folder)(images), expected)
    config = timm.data.resolve_model_data_config(by_timm)
    assert config["input_size"] == (3, 24, 24)
    assert (tuple(config["mean"]), config["crop_pct"]) == ((0.4, 0.5, 0.6), 0.8)
    stated = json.loads((folder / "config.json").read_text())
    assert stated["label_names"][0] == "ant"
    assert stated["label_descriptions"]["n02085620"].startswith("Chihuahua")
    # A folder of the same files is replaced.
    t2t.export(weights, to="timm", out=folder, images=photos)


def test_the_card_has_the_hubs_header(
    weights: Path, photos: list[str], tmp_path: Path
) -> None:
    data = tmp_path / "insects"
    for name in ("ant", "bee"):
        (data / name).mkdir(parents=True)
        for number, photo in enumerate(photos[:2]):
            (data / name / f"{number}.jpg").write_bytes(Path(photo).read_bytes())
    folder = tmp_path / "mine-timm"
    report = t2t.export(weights, to="timm", out=folder, data=str(data), license="mit")
    assert "on 4 images of insects (model card)" in report.accuracy
    card = ModelCard.load(folder / "README.md")
    about = card.data
    assert (about.license, about.library_name) == ("mit", "timm")
    assert about.pipeline_tag == "image-classification"
    assert {"t2t-vit", "timm"} <= {*about.tags}
    assert (about.datasets, about.metrics) == (["insects"], ["accuracy"])
    (result,) = about.eval_results
    assert result.metric_value in (0.0, 0.25, 0.5, 0.75, 1.0)
    assert "ant, bee, cat, Chihuahua" in card.text
    assert 't2t.load("hf-hub:OWNER/NAME")' in card.text


@pytest.mark.parametrize("channels", [1, 3])
def test_a_network_of_timm_is_loaded_by_timm_too(
    channels: int, photos: list[str], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model = create_model("resnet18_32", num_classes=3, in_channels=channels).eval()
    file = t2t.save(model, tmp_path / "cnn.safetensors", name="resnet18_32")
    t2t.export(file, to="timm", out=tmp_path / "cnn", images=photos[:1])
    images = torch.randn(1, channels, 32, 32)
    again = timm.create_model(f"local-dir:{tmp_path}/cnn", pretrained=True).eval()
    torch.testing.assert_close(again(images), model(images))
    torch.testing.assert_close(t2t.load(tmp_path / "cnn")(images), model(images))


def test_parts_of_a_users_file_are_refused(
    photos: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(POSITIONS, "mine", SinusoidPositions)
    small = {"dim": 16, "depth": 1, "num_heads": 1, "image_size": 16}
    model = create_model("deit_tiny", positions="mine", **small)
    file = t2t.save(model, tmp_path / "mine.safetensors", name="deit_tiny")
    with pytest.raises(UserError, match="the positions 'mine' of your own file"):
        t2t.export(file, to="timm", out=tmp_path / "out", images=photos[:1])
    assert not (tmp_path / "out").exists()


def test_the_card_states_the_runs_accuracy_unless_data_is_named(
    weights: Path, photos: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_run = KnownAccuracy(12.5, "the run's images")
    monkeypatch.setattr(hub_folder, "accuracy_of_run", lambda trained: of_run)
    stated = t2t.export(weights, to="timm", out=tmp_path / "a", images=photos).accuracy
    assert stated.startswith("Top-1 12.50 % on the run's images")
    for name in ("ant", "bee"):
        (tmp_path / "data" / name).mkdir(parents=True)
        Image.open(photos[0]).save(tmp_path / "data" / name / "0.png")
    data = str(tmp_path / "data")
    stated = t2t.export(weights, to="timm", out=tmp_path / "b", data=data).accuracy
    assert "on 2 images of data" in stated


def test_the_card_of_several_labels_says_that_an_image_may_have_none() -> None:
    assert "may get some of them too" in limits("24×24", "insects", several=True)
    assert "one of them too, often" in limits("24×24", "insects", several=False)
