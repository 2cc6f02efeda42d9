"""A run's model is halved, described, and found where it ships."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import t2t
from t2t.cli import main
from t2t.errors import UserError
from t2t.models import builtin
from t2t.studies.shipping import beginnings, half, ship
from t2t.studies.study import Study
from t2t.training.folder import read_recipe
from t2t.training.loop import Machine, train

CPU = Machine(device="cpu", compile=False, workers=1)
Output = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def run(tiny_study: Study, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    recipe = replace(tiny_study.arms["t2t"], epochs=6, evaluate_every=6)
    assert train(recipe, folder=folder, machine=CPU, quiet=True).finished
    return folder


@pytest.fixture
def shipped(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A build in which the run's model ships."""
    words = ["ship", str(run), "--into", str(tmp_path / "in"), "--data-name", "noise"]
    assert main([*words, "--device", "cpu"]) == 0
    monkeypatch.setattr(builtin, "FOLDER", tmp_path / "in")
    return tmp_path / "in"


def test_the_file_is_half_as_large_and_sees_the_same(run: Path, shipped: Path) -> None:
    file = shipped / "tiny.safetensors"
    whole, halved = load_file(run / "model.safetensors"), load_file(file)
    assert whole.keys() == halved.keys()
    assert {each.dtype for each in halved.values()} == {torch.float16}
    for name, each in whole.items():
        assert torch.allclose(halved[name].float(), each, rtol=1e-3, atol=1e-6)
    images = torch.randn(4, 3, 8, 8)
    with torch.no_grad():
        ours, theirs = t2t.load(run)(images), t2t.load("builtin")(images)
    assert theirs.dtype == torch.float32
    assert torch.allclose(ours, theirs, atol=0.02)


def test_the_card_tells_what_was_measured(
    run: Path, shipped: Path, images: Path, capsys: Output
) -> None:
    capsys.readouterr()
    words = ["eval", "--weights", "builtin", "--data", str(images), "--device", "cpu"]
    assert main([*words, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    card = (shipped / "MODEL_CARD.md").read_text()
    result = json.loads((run / "result.json").read_text())
    assert f"Top-1 {facts['top1']:.2f} % on 15 images (noise, val)" in card
    assert f"{result['top1']:.2f} % at the end of training" in card
    for row in facts["classes"]:
        assert f"| {row['name']} | 5 | {row['top1']:.1f} |" in card
    assert f"{result['parameters']:,} parameters at half precision" in card
    assert "## Limits" in card
    assert str(images) not in card


def test_the_card_tells_where_a_model_comes_from(run: Path) -> None:
    recipe = read_recipe(run)
    scratch = "Trained from scratch on noise, without other images"
    assert beginnings(recipe, "noise") == f"{scratch} and without pretrained weights."
    taught = replace(recipe, objective="distill_soft", teacher="hf-hub:some/one")
    said = "It was taught by `hf-hub:some/one`."
    assert beginnings(taught, "noise") == f"{scratch}. {said}"
    tuned = replace(recipe, weights="/some/where/T2T.pth.tar", hold_out=3)
    assert beginnings(tuned, "noise") == (
        "Trained on noise, 3 of its training images left out, starting from the "
        "weights `T2T.pth.tar`."
    )


@pytest.mark.usefixtures("shipped")
def test_predicting_needs_no_weights(images: Path, capsys: Output) -> None:
    capsys.readouterr()
    photo = str(next((images / "val/a").iterdir()))
    seen = {}
    for words in (
        ["predict", photo],
        ["predict", "builtin", photo],
        ["predict", photo, "--weights", "builtin"],
    ):
        assert main([*words, "--json", "--device", "cpu"]) == 0
        told = capsys.readouterr()
        seen[told.out] = told.err
        implied = "the built-in t2t_vit_7_32, trained on noise: it knows 3 classes"
        assert (implied in told.err) == (len(words) == 2)
    assert len(seen) == 1
    # A folder of images is no run.
    folder = str(images / "val")
    assert main(["predict", folder, "--csv", "--top", "1", "--device", "cpu"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 16


def test_a_build_without_a_model_says_so(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    monkeypatch.setattr(builtin, "FOLDER", tmp_path / "nothing")
    for words in (["predict", "cat.jpg"], ["eval", "builtin"], ["predict", "-"]):
        assert main(words) == 2
        assert "No model ships in this build of t2t" in capsys.readouterr().err
    for words, sentence in {
        ("predict",): "No images are named",
        ("predict", str(run)): "No images are named",
        ("predict", "no-such-run", "cat.jpg"): "There is no file no-such-run",
        ("eval",): "Name one run or file of weights",
        ("eval", str(run), "--weights", "builtin"): "Name one run or file of weights",
    }.items():
        assert main([*words]) == 2
        assert sentence in capsys.readouterr().err


def test_what_cannot_ship_is_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"MB at half precision, more than 0\.001"):
        ship(run, tmp_path / "in", most_megabytes=0.001)
    with pytest.raises(UserError, match="is not a run folder"):
        ship(tmp_path, tmp_path / "in")
    with pytest.raises(UserError, match="head holds numbers that half precision"):
        half("head", torch.tensor([1e6]))
    with pytest.raises(UserError, match="device='tpu' is not on this machine"):
        ship(run, tmp_path / "in", device="tpu")
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="file cannot be written"):
        ship(run, tmp_path / "file")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_model_ships_among_nothing_else(run: Path, shipped: Path) -> None:
    before = (shipped / "MODEL_CARD.md").read_text()
    ship(run, shipped, data_name="static", device="cpu")  # again, over the earlier one
    assert (shipped / "MODEL_CARD.md").read_text() != before
    photos = shipped.with_name("photos")
    photos.mkdir()
    (photos / "cat.jpg").touch()
    with pytest.raises(UserError, match=r"holds something else \(cat\.jpg\) than tiny"):
        ship(run, photos, device="cpu")
    assert [path.name for path in photos.iterdir()] == ["cat.jpg"]
    (shipped / "other.safetensors").touch()
    with pytest.raises(UserError, match=r"other\.safetensors.*a new folder"):
        ship(run, shipped, device="cpu")


def test_what_ships_is_small_and_has_its_card() -> None:
    files = sorted(builtin.FOLDER.glob("*.safetensors"))
    assert len(files) <= 1
    for file in files:
        assert file.stat().st_size <= 10_000_000
        assert (builtin.FOLDER / builtin.CARD).is_file()
        assert len(t2t.load("builtin").state_dict()) > 0
