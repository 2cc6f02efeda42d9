"""An exported file gives what PyTorch gives, or does not exist."""

import json
import resource
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir
import onnxruntime
import pytest
import timm
import torch
from PIL import Image

import t2t
from t2t.cli import main
from t2t.deployment import onnx_file
from t2t.deployment.check_images import CheckImages
from t2t.deployment.int8 import compare_classes
from t2t.deployment.target import publish, unfinished
from t2t.deployment.torch_export_file import METADATA_FILE
from t2t.deployment.weights_file import extra_of
from t2t.errors import UserError
from t2t.models.trained import load_trained
from t2t.models.weights import save
from t2t.serving.predictor import Predictor

Output = pytest.CaptureFixture[str]


def test_onnx_has_names_classes_and_preprocessing(
    weights: Path, photos: list[str], tmp_path: Path, capsys: Output
) -> None:
    out = tmp_path / "mine.onnx"
    assert (
        main(["export", str(weights), *photos, "--to", "onnx", "--out", str(out)]) == 0
    )
    told = capsys.readouterr().out
    assert f"{out}: " in told
    assert "differs from PyTorch by at most" in told
    assert "on 4 images" in told
    session = onnxruntime.InferenceSession(out)
    (images,), (logits,) = session.get_inputs(), session.get_outputs()
    assert (images.name, images.shape) == ("images", ["batch", 3, 24, 24])
    assert (logits.name, logits.shape) == ("logits", ["batch", 4])
    about = session.get_modelmeta().custom_metadata_map
    assert json.loads(about["class_names"])[:2] == ["ant", "bee"]
    assert json.loads(about["readable_names"])[3].startswith("Chihuahua")
    assert json.loads(about["mean"]) == [0.4, 0.5, 0.6]
    assert json.loads(about["crop_fraction"]) == 0.8
    assert json.loads(about["interpolation"]) == "bicubic"
    assert json.loads(about["multilabel"]) is False
    assert json.loads(about["t2t_version"]) == t2t.__version__
    assert "4 images" in json.loads(about["parity"])
    assert str(Path.cwd()).encode() not in out.read_bytes()  # no path of this machine
    assert b"/t2t/models" not in out.read_bytes()
    assert [*tmp_path.iterdir()] == [out]


def test_any_image_size_and_preprocessing_inside(
    weights: Path, photos: list[str], tmp_path: Path
) -> None:
    report = t2t.export(
        weights,
        to="onnx",
        out=tmp_path / "any.onnx",
        images=photos,
        dynamic_image_size=True,
        with_preprocessing=True,
    )
    assert "at 24×24 and 40×32 pixels" in report.parity.images
    session = onnxruntime.InferenceSession(report.path)
    (images,), (output,) = session.get_inputs(), session.get_outputs()
    assert images.shape == ["batch", 3, "height", "width"]
    assert (images.type, output.name) == ("tensor(uint8)", "probabilities")
    pixels = np.random.default_rng(0).integers(0, 256, (3, 3, 32, 56), np.uint8)
    (found,) = session.run(None, {"images": pixels})
    predictor = Predictor(weights, "cpu")
    with torch.inference_mode():
        logits = predictor.model(predictor.normalised(torch.from_numpy(pixels)))
    np.testing.assert_allclose(found, logits.softmax(1), atol=1e-5)


def test_a_file_that_differs_is_refused(
    weights: Path, photos: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    strip = onnx_file.strip_traces

    def spoil(model: Any) -> None:
        strip(model)
        for weight in model.graph.initializers.values():
            if weight.name.endswith("head.weight"):
                changed = weight.const_value.numpy() * np.float32(1.001)
                weight.const_value = onnx_ir.tensor(changed, name=weight.name)

    monkeypatch.setattr(onnx_file, "strip_traces", spoil)
    out = tmp_path / "mine.onnx"
    out.write_text("an earlier export")
    with pytest.raises(
        UserError, match=r"ONNX is not exported: it differs .* is allowed"
    ):
        t2t.export(weights, to="onnx", out=out, images=photos)
    assert [*tmp_path.iterdir()] == [out]
    assert out.read_text() == "an earlier export"


def test_a_folder_is_not_replaced_by_a_file(
    weights: Path, photos: list[str], tmp_path: Path
) -> None:
    (tmp_path / "own.onnx").mkdir()
    with pytest.raises(
        UserError, match=r"is a folder: name a file that ends in \.onnx"
    ):
        t2t.export(weights, to="onnx", out=tmp_path / "own.onnx", images=photos)


def test_the_weights_of_a_large_graph_are_moved_with_it(tmp_path: Path) -> None:
    with unfinished(tmp_path / "own.onnx") as part:
        for name in ("own.onnx", "own.onnx.data"):
            part.with_name(name).write_text(name)
        publish(part, tmp_path / "own.onnx")
    found = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert found == {name: name for name in ("own.onnx", "own.onnx.data")}


@pytest.mark.parametrize("to", ["onnx", "torch-export"])
def test_a_full_disk_is_one_sentence(
    to: str,
    weights: Path,
    photos: list[str],
    tmp_path: Path,
    capsys: Output,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        assert main(["export", str(weights), photos[0], "--to", to]) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "cannot be written (File too large): free some" in capsys.readouterr().err
    assert [*tmp_path.iterdir()] == []


def test_a_full_disk_names_the_file_that_was_to_be_written(
    weights: Path, photos: list[str], tmp_path: Path
) -> None:
    out = tmp_path / "shared.safetensors"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(UserError) as raised:
            t2t.export(weights, to="safetensors", out=out, images=photos)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert str(raised.value).startswith(f"{out} could not be written (")
    assert str(raised.value).endswith("free some space, or name another place.")
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("to", ["onnx", "torch-export", "timm"])
def test_exports_name_the_data_without_its_path(
    to: str, weights: Path, photos: list[str], tmp_path: Path
) -> None:
    state = load_trained(weights)
    secret = {
        "data": "/home/anna/clients/insects",
        "labels": {"files": ["/home/l.csv"]},
    }
    given = save(
        state.model,
        tmp_path / "given.safetensors",
        name=state.name,
        class_names=state.class_names,
        extra={**extra_of(state), **secret},
    )
    suffix = {"onnx": ".onnx", "torch-export": ".pt2", "timm": ""}[to]
    out = tmp_path / f"shared{suffix}"
    report = t2t.export(given, to=to, out=out, images=photos)
    files = report.path.rglob("*") if report.path.is_dir() else [report.path]
    written = b"".join(file.read_bytes() for file in files)
    assert b"insects" in written
    assert b"/home" not in written


def test_int8_states_its_accuracy_beside_float32s(
    weights: Path, photos: list[str], tmp_path: Path
) -> None:
    named = tmp_path / "data"
    predicted = Predictor(weights, "cpu").predict(photos, top=1)
    for photo, prediction in zip(photos, predicted, strict=True):
        folder = named / prediction.best.class_name
        folder.mkdir(parents=True, exist_ok=True)
        Image.open(photo).save(folder / Path(photo).name)
    (named / "ant").mkdir(exist_ok=True)
    Image.new("RGB", (40, 40), "red").save(named / "ant" / "red.png")
    out = tmp_path / "int8.onnx"
    report = t2t.export(weights, to="onnx", out=out, data=str(named), int8=True)
    assert report.accuracy.startswith("Top-1 ")
    assert "% in float32 on 5 images of data." in report.accuracy
    about = onnxruntime.InferenceSession(out).get_modelmeta().custom_metadata_map
    assert json.loads(about["accuracy"]) == report.accuracy
    assert "int8" in json.loads(about["quantization"])
    unlabelled = t2t.export(weights, to="onnx", out=out, images=photos, int8=True)
    assert "is not measured: no labelled images are given" in unlabelled.accuracy
    assert "the same class as float32 on " in unlabelled.accuracy


def test_int8_of_several_labels_an_image_says_why_it_is_not_measured() -> None:
    images = CheckImages((torch.zeros(2, 3, 8, 8, dtype=torch.uint8),), "2 images")

    def run(pixels: torch.Tensor) -> np.ndarray:
        return np.eye(2, dtype=np.float32)

    stated = compare_classes(run, run, images, multilabel=True)
    assert "not measured: the model predicts several labels per image." in stated
    assert "--data" not in stated


def test_torch_export_loads_without_this_package(
    weights: Path, photos: list[str], tmp_path: Path
) -> None:
    out = tmp_path / "mine.pt2"
    t2t.export(weights, to="torch-export", out=out, images=photos)
    extra = {METADATA_FILE: ""}
    program = torch.export.load(out, extra_files=extra)
    assert json.loads(extra[METADATA_FILE])["class_names"][0] == "ant"
    images = torch.randn(3, 3, 24, 24)
    expected = load_trained(weights).model(images)
    torch.testing.assert_close(program.module()(images), expected)


def test_safetensors_load_with_their_preprocessing(
    weights: Path, photos: list[str], tmp_path: Path
) -> None:
    out = tmp_path / "again.safetensors"
    t2t.export(weights, to="safetensors", out=out, images=photos[:1], image_size=32)
    again = load_trained(out)
    assert (again.image_size, again.mean) == ((32, 32), (0.4, 0.5, 0.6))
    assert (again.data, again.class_names[0]) == ("insects", "ant")
    assert again.notes == ()


def test_the_default_name_is_that_of_the_weights(
    weights: Path, photos: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    report = t2t.export(weights, to="safetensors", images=photos[:1])
    assert [*Path().iterdir()] == [Path("mine.safetensors")] == [report.path]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("WEIGHTS PHOTO", "t2t export needs --to"),
        ("WEIGHTS --to onnx", "name an image or more"),
        (
            "WEIGHTS PHOTO --to tflite",
            "takes onnx, safetensors, timm, torch-export;",
        ),
        ("nowhere PHOTO --to onnx", "There is no file nowhere"),
        ("WEIGHTS nowhere.jpg --to onnx", "nowhere.jpg cannot be read"),
        ("WEIGHTS PHOTO --to onnx --out a.pt2", "must end in .onnx"),
        ("WEIGHTS PHOTO --to onnx --out no/a.onnx", "there is no folder no"),
        ("WEIGHTS PHOTO --to safetensors --out WEIGHTS", "is the file of weights"),
        ("WEIGHTS PHOTO --to safetensors --int8", "int8 is for onnx, not for"),
        (
            "WEIGHTS PHOTO --to onnx --license mit",
            "license is for the card of a timm folder",
        ),
        ("WEIGHTS PHOTO --to timm --dynamic-image-size", "dynamic-image-size is for"),
        ("WEIGHTS PHOTO --to timm --out HERE", "something other than an earlier"),
        ("WEIGHTS PHOTO --to timm --license Apache", "Did you mean apache-2.0?"),
        ("WEIGHTS PHOTO --to timm --license apache2", "'apache2' is not a name that"),
        ("PHOTO --to onnx", "is not weights: give those first"),
        ("WEIGHTS PHOTO --to onnx --val-images 0", "--val-images 0 is too small"),
        ("WEIGHTS PHOTO --to onnx --image-size 0", "--image-size 0 is too small"),
        ("WEIGHTS PHOTO --to onnx --image-size 9x5000", "9×5000 pixels are too large"),
        ("WEIGHTS PHOTO --to onnx --image-size big", "--image-size big is not a size"),
        ("WEIGHTS --data nowhere --to onnx", "nowhere"),
    ],
)
def test_a_mistake_is_one_sentence(
    words: str,
    sentence: str,
    weights: Path,
    photos: list[str],
    tmp_path: Path,
    capsys: Output,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other.txt").touch()
    places = {"WEIGHTS": str(weights), "PHOTO": photos[0], "HERE": str(tmp_path)}
    assert main(["export", *(places.get(word, word) for word in words.split())]) == 2
    told = capsys.readouterr()
    assert sentence in told.err.splitlines()[-1]
    assert told.out == ""
    assert [path.name for path in tmp_path.iterdir()] == ["other.txt"]


@pytest.mark.parametrize("to", ["onnx", "torch-export"])
def test_a_network_of_one_size_is_not_exported_for_any(
    to: str, photos: list[str], tmp_path: Path
) -> None:
    file = tmp_path / "vit.safetensors"
    model = timm.create_model("test_vit", num_classes=2)
    about = {"image_size": [160, 160], "channels": 3, "crop_fraction": 1.0}
    extra = {**about, "mean": [0.5] * 3, "std": [0.5] * 3}
    save(model, file, name="test_vit", class_names=("ant", "bee"), extra=extra)
    with pytest.raises(UserError, match="patches; leave --dynamic-image-size out"):
        t2t.export(file, to=to, images=photos, dynamic_image_size=True)


def test_a_missing_package_is_one_sentence(
    weights: Path, photos: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "onnxscript", None)
    with pytest.raises(UserError, match=r"pip install '\.\[export\]'"):
        t2t.export(weights, to="onnx", images=photos)
