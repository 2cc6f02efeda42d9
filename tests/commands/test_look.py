"""`t2t look` as users meet it."""

import json
import os
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from t2t.cli import main
from t2t.models.create import create_model
from t2t.models.weights import save

Output = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("place")
    torch.manual_seed(0)
    small = {"dim": 12, "depth": 1, "num_heads": 2, "token_dim": 8, "image_size": 16}
    model = create_model("t2t_vit_7_32", num_classes=2, **small)
    path = folder / "small.safetensors"
    save(model, path, name="t2t_vit_7_32", class_names=["cat", "dog"])
    pixels = np.random.default_rng(0).integers(0, 255, (20, 30, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(folder / "cat.png")
    return folder


def test_the_report_is_named(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    monkeypatch.chdir(place)
    assert main(["look", "small.safetensors", "cat.png", "--device", "cpu"]) == 0
    out, err = capsys.readouterr()
    assert "Report: look/report.html" in out
    assert "0 of 40" in out
    assert "does not state its preprocessing" in err
    assert (place / "look" / "report.html").exists()


def test_json_and_unreadable_images(
    place: Path, tmp_path: Path, capsys: Output
) -> None:
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"no image")
    words = ["look", f"{place}/small.safetensors", f"{place}/cat.png", str(broken)]
    words += ["--compare", f"{place}/small.safetensors"] * 2
    assert main([*words, "--out", f"{tmp_path}/out", "--json"]) == 1
    out, err = capsys.readouterr()
    numbers = json.loads(out)
    assert len(numbers["models"]) == 3
    assert numbers["report"] == f"{tmp_path}/out/report.html"
    assert "broken.png cannot be read" in err


def test_a_list_may_hold_names_of_any_bytes(
    place: Path, tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = os.fsencode(tmp_path) + b"/\xff.png"
    Path(os.fsdecode(name)).write_bytes((place / "cat.png").read_bytes())
    listed = TextIOWrapper(BytesIO(name + b"\n"), encoding="utf-8")
    monkeypatch.setattr("sys.stdin", listed)
    words = ["look", f"{place}/small.safetensors", "-", "--out", f"{tmp_path}/out"]
    assert main(words) == 0
    assert "Report: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["look"], "No images are given"),
        (["look", "-"], "The list on standard input is empty"),
        (["look", "small.safetensors"], "No images are given"),
        (["look", "small.safetensors", "none.png"], "none.png cannot be read"),
        (["look", "none.safetensors", "cat.png"], "none.safetensors"),
        (["look", "cat.png", "--out", "cat.png"], "is a file; name a folder"),
        (["look", "none.pth", "cat.png", "--out", "cat.png/x"], "cannot be written"),
        (["look", "cat.png", "--compare", "nothing"], "nothing"),
        (["look", "cat.png", "--image-size", "large"], "is not a size"),
        (["look", "cat.png", "--image-size", "0"], "--image-size 0 is too small"),
        (["look", "cat.png", "--max-pixels", "0"], "too small"),
        (["look", "cat.png", "--device", "tpu"], "tpu"),
        (["look", "cat.png", "."], "is a run, not images"),
    ],
)
def test_wrong_input_gets_one_sentence(
    words: list[str],
    sentence: str,
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Output,
) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setattr("sys.stdin", StringIO())
    assert main([*words]) == 2
    err = capsys.readouterr().err
    assert sentence in err
    assert "Traceback" not in err
