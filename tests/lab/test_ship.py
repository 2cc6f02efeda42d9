"""A run's model is halved, described, and found where it ships."""

import json
import shutil
from dataclasses import replace
from errno import ENOSPC
from pathlib import Path
from shutil import copytree
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import t2t
from t2t.cli import main
from t2t.errors import UserError
from t2t.lab.ship import card, data_sentence, half, ship
from t2t.lab.studies.study import Study
from t2t.models import builtin
from t2t.models.weights import load_with_report
from t2t.training.evaluation.evaluate_model import evaluate_model
from t2t.training.runtime import Runtime
from t2t.training.saved_run import read_recipe
from t2t.training.train import train

CPU = Runtime(device="cpu", compile="off", workers=1)
Output = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def run(tiny_study: Study, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    recipe = replace(tiny_study.arms["t2t"], epochs=6, evaluate_every=6)
    assert train(recipe, folder=folder, runtime=CPU, quiet=True).finished
    return folder


@pytest.fixture
def shipped(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A build in which the run's model ships."""
    words = ["ship", str(run), "--out", str(tmp_path / "in"), "--data-name", "noise"]
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


def test_the_file_that_ships_is_evaluated(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged = []

    def watched(path: Path, **options: Any) -> Any:
        judged.append({name: each.clone() for name, each in load_file(path).items()})
        return evaluate_model(path, **options)

    monkeypatch.setattr("t2t.lab.ship.evaluate_model", watched)
    file, _ = ship(run, tmp_path / "in", device="cpu")
    (seen,) = judged
    for name, each in load_file(file).items():
        assert torch.equal(seen[name], each)
        assert seen[name].dtype == torch.float16


def test_the_card_says_what_was_measured(
    run: Path, shipped: Path, images: Path, capsys: Output
) -> None:
    capsys.readouterr()
    words = ["eval", "builtin", "--data", str(images), "--device", "cpu"]
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


def test_the_card_says_where_a_model_comes_from(run: Path) -> None:
    recipe = read_recipe(run)
    scratch = "Trained from scratch on noise, without other images"
    assert (
        data_sentence(recipe, "noise") == f"{scratch} and without pretrained weights."
    )
    taught = replace(
        recipe, task="distill_soft", task_args={"teacher": "hf-hub:some/one"}
    )
    said = "It was distilled from `hf-hub:some/one`."
    assert data_sentence(taught, "noise") == f"{scratch}. {said}"
    tuned = replace(recipe, weights="/some/where/T2T.pth.tar", holdout=3)
    assert data_sentence(tuned, "noise") == (
        "Trained on noise, 3 of its training images left out, starting from the "
        "weights `T2T.pth.tar`."
    )


def test_no_class_breaks_the_table_of_the_card(run: Path, tmp_path: Path) -> None:
    model, loaded = load_with_report(run)
    named = tmp_path / "run"
    copytree(run, named)
    names = ("a|b", "two\nlines", "latin-\udce9")
    t2t.save(model, named, name=loaded.name, class_names=names, extra=loaded.extra)
    images = tmp_path / "images" / "val"
    for number, name in enumerate(names):
        copytree(Path(read_recipe(run).data) / "val" / "abc"[number], images / name)
    ship(named, tmp_path / "in", data=str(images), device="cpu")
    card = (tmp_path / "in/MODEL_CARD.md").read_text()
    for name in (r"a\|b", r"two\nlines", r"latin-\udce9"):
        assert f"\n| {name} | 5 |" in card


@pytest.mark.usefixtures("shipped")
def test_predicting_needs_no_weights(images: Path, capsys: Output) -> None:
    capsys.readouterr()
    photo = str(next((images / "val/a").iterdir()))
    seen = {}
    for words in (
        ["predict", photo],
        ["predict", "builtin", photo],
    ):
        assert main([*words, "--json", "--device", "cpu"]) == 0
        told = capsys.readouterr()
        seen[told.out] = told.err
        implied = "the built-in t2t_vit_7_32, trained on noise (3 classes)"
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
        assert "This build of t2t contains no model" in capsys.readouterr().err
    for words, sentence in {
        ("predict",): "No images are given",
        ("predict", str(run)): "No images are given",
        ("predict", "no-such-run", "cat.jpg"): "There is no file no-such-run",
        ("eval",): "t2t eval needs WEIGHTS",
    }.items():
        assert main([*words]) == 2
        assert sentence in capsys.readouterr().err


def test_what_cannot_ship_is_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"MB at half precision, more than 0\.001"):
        ship(run, tmp_path / "in", most_megabytes=0.001)
    with pytest.raises(UserError, match="is not a run folder"):
        ship(tmp_path, tmp_path / "in")
    with pytest.raises(UserError, match="head holds numbers that do not fit"):
        half("head", torch.tensor([1e6]))
    with pytest.raises(UserError, match="device='tpu' is not available"):
        ship(run, tmp_path / "in", device="tpu")
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="file cannot be written"):
        ship(run, tmp_path / "file")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_only_classifiers_are_shipped(run: Path, tmp_path: Path) -> None:
    other = tmp_path / "run"
    shutil.copytree(run, other)
    result = json.loads((other / "result.json").read_text())
    del result["top1"], result["top1_raw"]
    result |= {"metric": "likeness", "likeness": 1.0, "likeness_raw": 1.0}
    (other / "result.json").write_text(json.dumps(result | {"task": "mine"}))
    with pytest.raises(UserError, match="its task is mine, and only a run that learn"):
        ship(other, tmp_path / "into")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_model_ships_among_nothing_else(run: Path, shipped: Path) -> None:
    before = (shipped / "MODEL_CARD.md").read_text()
    ship(run, shipped, data_name="static", device="cpu")  # again, over the earlier one
    assert (shipped / "MODEL_CARD.md").read_text() != before
    photos = shipped.with_name("photos")
    photos.mkdir()
    (photos / "cat.jpg").touch()
    with pytest.raises(UserError, match=r"something other than tiny \(cat\.jpg\)"):
        ship(run, photos, device="cpu")
    assert [path.name for path in photos.iterdir()] == ["cat.jpg"]
    (shipped / "other.safetensors").touch()
    with pytest.raises(UserError, match=r"other\.safetensors.*a new folder"):
        ship(run, shipped, device="cpu")


def test_another_model_of_the_same_name_is_not_written_over(
    run: Path, shipped: Path, tmp_path: Path
) -> None:
    before = (shipped / "tiny.safetensors").read_bytes()
    other = tmp_path / "run"
    copytree(run, other)
    model, loaded = load_with_report(run)
    names = ("a", "b", "d")
    t2t.save(model, other, name=loaded.name, class_names=names, extra=loaded.extra)
    with pytest.raises(UserError, match=r"another model of the name tiny; give --out"):
        ship(other, shipped, device="cpu")
    assert (shipped / "tiny.safetensors").read_bytes() == before


def test_no_training_image_evaluates_the_model_that_ships(
    run: Path, images: Path, tmp_path: Path
) -> None:
    whole = tmp_path / "whole"  # not split: the run itself holds some of it out
    shutil.copytree(images / "train", whole)
    recipe = replace(read_recipe(run), data=str(whole), epochs=1)
    train(recipe, folder=tmp_path / "run", runtime=CPU, quiet=True)
    top1 = json.loads((tmp_path / "run/result.json").read_text())["top1"]
    words = ["ship", str(tmp_path / "run"), "--device", "cpu", "--out"]
    assert main([*words, str(tmp_path / "a"), "--data-name", "whole"]) == 0
    card = (tmp_path / "a/MODEL_CARD.md").read_text()
    assert f"Top-1 {top1:.2f} % on 5 images (whole, val)" in card
    # Other images are called what they are, and all of them judge.
    assert main([*words, str(tmp_path / "b"), "--data", str(images / "val")]) == 0
    card = (tmp_path / "b/MODEL_CARD.md").read_text()
    assert "on 15 images (val, all)" in card
    assert "Trained from scratch on whole, " in card
    assert str(tmp_path) not in card  # nor the path of the other images


def test_a_card_keeps_the_recipes_name_in_its_command(run: Path) -> None:
    recipe = replace(read_recipe(run), data="digits", holdout=100, epochs=1)
    trained = SimpleNamespace(name="m", image_size=(8, 8), class_names=("a",))
    score = SimpleNamespace(top1=50.0, num_images=2)
    report: Any = SimpleNamespace(
        trained=trained, score=score, data="scans", split="val", classes=list
    )
    command = "t2t train digits --data digits --folder runs/digits"
    result = {"command": command, "parameters": 1, "top1": 60.0}
    told = card(recipe, result, report, 1_000_000, "scans")
    assert "$ t2t train digits --data scans --folder runs/digits\n" in told
    assert ", 1 epoch, seed " in told
    assert "; 60.00 % on 100 held-out images at the end of training" in told


def test_a_model_never_ships_without_its_card(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, text: str) -> None:
        raise OSError(ENOSPC, "No space left on device")

    into = tmp_path / "in"
    with monkeypatch.context() as patch:
        patch.setattr("t2t.lab.ship.write_text", full)
        with pytest.raises(UserError, match="No space left on device"):
            ship(run, into, device="cpu")
    assert not into.exists()
    into.mkdir()
    (into / ".tiny.safetensors.123.part").touch()  # by a process that was killed
    ship(run, into, device="cpu")
    names = {path.name for path in into.iterdir()}
    assert names == {"MODEL_CARD.md", "tiny.safetensors"}


def test_what_ships_is_small_and_has_its_card() -> None:
    files = sorted(builtin.FOLDER.glob("*.safetensors"))
    assert len(files) <= 1
    for file in files:
        assert file.stat().st_size <= 10_000_000
        assert (builtin.FOLDER / builtin.CARD).is_file()
        assert len(t2t.load("builtin").state_dict()) > 0
