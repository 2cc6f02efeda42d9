"""`t2t probe`, `t2t features` and `t2t neighbors` from the command line."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from t2t.cli import main
from t2t.models.create import create_model
from t2t.models.weights import save


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> str:
    torch.manual_seed(0)
    model = create_model(
        "t2t_vit_7_32",
        num_classes=3,
        image_size=8,
        dim=16,
        depth=1,
        num_heads=1,
        token_dim=8,
    )
    extra: dict[str, Any] = {"image_size": [8, 8], "channels": 3, "crop_fraction": 1.0}
    extra |= {"mean": [0.5] * 3, "std": [0.2] * 3}
    folder = tmp_path_factory.mktemp("weights")
    return str(save(model, folder / "m.safetensors", name="t2t_vit_7_32", extra=extra))


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("photos")
    for number in range(40):
        place = folder / "ab"[number % 2]
        place.mkdir(exist_ok=True)
        color = (200 * (number % 2), 40, 5 * number)
        Image.new("RGB", (10, 8), color).save(place / f"{number}.png")
    return str(folder)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_probe_prints_a_table_and_writes_its_numbers(
    weights: str, photos: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["probe", weights, "--data", photos, "--device", "cpu"]
    assert main([*words, "--k", "2"]) == 0
    shown = capsys.readouterr()
    assert "36 training images of 2 classes, evaluated on 4 (val)" in shown.out
    assert "linear" in shown.out
    assert "k = 2, as given" in shown.out
    assert "Numbers: probe.json" in shown.err
    facts = json.loads((here / "probe.json").read_text())
    assert [each["method"] for each in facts["results"]] == ["linear", "knn"]
    more = ["--methods", "few_shot,knn", "--draws", "2", "--seed", "5", "--val-images"]
    assert main([*words, *more, "2", "--out", "mine.json", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((here / "mine.json").read_text())
    methods = [(each["method"], each.get("shots")) for each in printed["results"]]
    expected = [("knn", None), ("few-shot", 1), ("few-shot", 5), ("few-shot", 10)]
    assert methods == expected
    assert printed["results"][1]["seeds"] == [5, 6]
    assert printed["num_images"] == 2


def test_a_run_keeps_its_numbers(
    weights: str, photos: str, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from t2t.probing import images

    run = here / "run"
    run.mkdir()
    (run / "model.safetensors").symlink_to(weights)
    monkeypatch.setattr(images, "recipe_beside", lambda path: None)
    assert images.weights_folder(run) is None
    monkeypatch.undo()
    monkeypatch.chdir(here)
    from t2t.config import to_json
    from t2t.recipes.digits import t2t_vit

    (run / "recipe.json").write_text(json.dumps(to_json(t2t_vit())))
    words = ["--data", photos, "--methods", "knn", "--device", "cpu"]
    for given in ("run", "run/model.safetensors"):
        assert main(["probe", given, *words]) == 0
        assert (run / "probe.json").is_file()
        (run / "probe.json").unlink()
    assert not (here / "probe.json").exists()


def test_features_go_into_files(
    weights: str, photos: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["features", weights, "--data", photos, "--device", "cpu", "--out", "f.npy"]
    assert main([*words, "--picture", "t.png", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["files"] == ["f.npy", "f.csv", "t.png"]
    assert np.load(here / "f.npy").shape == (40, 16)
    assert len((here / "f.csv").read_text().splitlines()) == 41
    with Image.open(here / "t.png") as picture:
        assert min(picture.size) > 500
    assert main([*words, "--split", "val", "--num-images", "2"]) == 0
    assert "2 features of width 16" in capsys.readouterr().out


def test_neighbors_are_listed_and_drawn(
    weights: str, photos: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image = f"{photos}/a/0.png"
    words = ["neighbors", weights, image, "--data", photos, "--device", "cpu"]
    assert main([*words, "--top", "3", "--picture", "n.png"]) == 0
    shown = capsys.readouterr()
    assert shown.out.count(f"{photos}/a/") == 4
    assert "Picture: n.png" in shown.err
    assert (here / "n.png").stat().st_size > 1000
    assert main([*words, "--json", "--top", "2", "--split", "val"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["split"], facts["num_images"]) == ("val", 4)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "probe builtin --methods lin",
            "--methods lin is not known. Did you mean linear",
        ),
        ("probe builtin --shots 1,x", "--shots 1,x must be whole numbers"),
        ("probe builtin --shots 0", "--shots 0 is too small"),
        ("probe builtin --k 0", "--k 0 is too small"),
        ("probe builtin --train-images 0", "--train-images 0 is too small"),
        ("probe builtin --out probe.txt", "--out probe.txt must end in .json"),
        ("probe builtin --out no/probe.json", "there is no folder no"),
        ("probe absent", "There is no file absent"),
        ("features builtin digits", "Say where to write"),
        ("features builtin --out f.csv", "--out f.csv must end in .npy"),
        ("features builtin --out no/f.npy", "there is no folder no"),
        ("neighbors builtin", "No image is given beside builtin"),
        ("neighbors builtin no.png --data digits", "no.png cannot be read"),
        ("neighbors builtin no.png --top 0", "--top 0 is too small"),
    ],
)
def test_a_mistake_is_one_sentence(
    words: str, message: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words.split()) == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert shown.err.count("\n") == 1
    assert not [*here.iterdir()]
