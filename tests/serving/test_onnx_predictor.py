"""`t2t predict model.onnx` sees evaluation's pixels, and runs without PyTorch."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from PIL import Image

import t2t
from t2t.cli import main
from t2t.data.center_crop import center_boxes
from t2t.data.decoding.damage import DamagedImage
from t2t.errors import UserError
from t2t.serving import onnx_predictor
from t2t.serving.export_metadata import ExportMetadata
from t2t.serving.onnx_predictor import OnnxPredictor, sigmoid
from t2t.serving.prediction import ClassProbability, Prediction
from t2t.serving.predictor import Predictor

Output = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def exported(
    weights: Path, photos: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    file = tmp_path_factory.mktemp("onnx") / "small.onnx"
    t2t.export(weights, to="onnx", out=file, images=[str(photos / "ant" / "00.jpg")])
    return file


@pytest.fixture(scope="module")
def on_onnx(exported: Path) -> OnnxPredictor:
    return t2t.load_onnx(exported)


def variants(folder: Path) -> list[Path]:
    """A photograph in many formats, modes, sizes and orientations."""
    rng = np.random.default_rng(0)
    small = Image.fromarray(rng.integers(0, 256, (9, 12, 3), np.uint8))
    photo = small.resize((90, 61), Image.Resampling.BICUBIC)
    paths = []
    for mode in ("RGB", "L", "P", "RGBA", "LA", "1", "CMYK", "I;16"):
        kind = "jpg" if mode == "CMYK" else "png"
        picture = photo.convert(mode) if mode != "I;16" else None
        if picture is None:
            wide = np.asarray(photo.convert("L")).astype(np.uint16) * 257
            picture = Image.fromarray(wide)
        paths.append(folder / f"{mode.replace(';', '')}.{kind}")
        picture.save(paths[-1])
    for orientation in range(1, 9):
        exif = photo.getexif()
        exif[0x0112] = orientation
        paths.append(folder / f"turned{orientation}.jpg")
        photo.save(paths[-1], exif=exif, quality=90)
    for kind in ("webp", "gif", "bmp", "tif"):
        paths.append(folder / f"photo.{kind}")
        photo.save(paths[-1])
    for size in ((16, 16), (3, 200), (1200, 900), (700, 751)):  # large ones are shrunk
        paths.append(folder / f"{size[0]}.jpg")
        photo.resize(size).save(paths[-1], quality=95)
        paths.append(folder / f"{size[0]}.png")
        photo.resize(size).save(paths[-1])
    return paths


def test_the_pixels_are_those_of_pytorchs_predictor(
    predictor: Predictor, on_onnx: OnnxPredictor, tmp_path: Path
) -> None:
    for path in variants(tmp_path):
        expected = predictor.model_input(path).numpy()
        found = on_onnx.model_input(path)
        assert np.array_equal(found, expected), path.name
        assert np.array_equal(
            on_onnx.normalised(found),
            predictor.normalised(torch.from_numpy(found)).numpy(),
        )


def test_the_predictions_are_pytorchs(
    predictor: Predictor, on_onnx: OnnxPredictor, photos: Path
) -> None:
    paths = sorted(photos.rglob("*.*g"))
    for one, other in zip(
        predictor.predict(paths, top=3),
        on_onnx.predict(paths, top=3, batch_size=5),
        strict=True,
    ):
        assert one.image == other.image
        assert [each.name for each in one.classes] == [
            each.name for each in other.classes
        ]
        for first, second in zip(one.classes, other.classes, strict=True):
            assert first.probability == pytest.approx(second.probability, abs=1e-5)


def test_an_image_is_the_same_in_every_form(
    on_onnx: OnnxPredictor, photos: Path
) -> None:
    path = photos / "bee" / "01.png"
    array = np.array(Image.open(path))
    forms: list[Any] = [path, path.read_bytes(), Image.open(path), array]
    forms.append(torch.from_numpy(array).permute(2, 0, 1))
    assert len({each.classes for each in on_onnx.predict(forms)}) == 1
    grey, seen = on_onnx.predict([array[..., 0], np.dstack([array[..., 0]] * 3)])
    assert grey.classes == seen.classes


def test_damaged_images_are_passed_over(
    on_onnx: OnnxPredictor, photos: Path, tmp_path: Path
) -> None:
    (tmp_path / "text.jpg").write_text("hello")
    images = [tmp_path / "text.jpg", photos / "ant" / "00.jpg", tmp_path / "none.png"]
    kinds = [type(each) for each in on_onnx.predict_each(images)]
    assert kinds == [DamagedImage, Prediction, DamagedImage]
    with pytest.raises(UserError, match="float64 array of 3 × 4"):
        on_onnx.predict(np.zeros((3, 4)))


def test_predict_runs_without_pytorch(exported: Path, photos: Path) -> None:
    script = (
        "import sys; from t2t.cli import main; code = main(sys.argv[1:]); "
        "heavy = {'torch', 'timm', 'onnx', 'sklearn'} & sys.modules.keys(); "
        "sys.exit(f'imported {heavy}' if heavy else code)"
    )
    for words in (
        [str(photos), "--json"],
        [str(photos / "ant" / "00.jpg")],
        [str(photos / "ant"), "--csv"],
    ):
        done = subprocess.run(
            [sys.executable, "-c", script, "predict", str(exported), *words],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("form", [[], ["--json"], ["--csv", "--top", "2"]])
def test_the_output_is_that_of_the_weights(
    form: list[str],
    exported: Path,
    weights: Path,
    photos: Path,
    capsys: Output,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    listed = f"{photos / 'ant' / '00.jpg'}\n{photos / 'nowhere.jpg'}\n"
    told = []
    for model in (exported, weights):
        monkeypatch.setattr("sys.stdin", io.StringIO(listed))
        assert main(["predict", str(model), "-", str(photos / "bee"), *form]) == 1
        output = capsys.readouterr()
        told.append((numbers_rounded(output.out), output.err))
    assert told[0] == told[1]


def numbers_rounded(text: str) -> str:
    """A text without the last digits of its numbers."""
    words = text.replace(",", " ").replace("}", " ").split()
    return " ".join(word[:5] if word[0].isdecimal() else word for word in words)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("nowhere.onnx cat.jpg", "There is no file nowhere.onnx"),
        ("TEXT cat.jpg", "is not an ONNX model that can be run here"),
        ("PLAIN cat.jpg", "does not name its classes and preprocessing"),
        ("MODEL nowhere.jpg", "No image could be read"),
        ("MODEL", "No images are given"),
        ("MODEL cat.jpg --picture a.png", "--picture needs the model's layers"),
        ("MODEL cat.jpg --device cuda", "an ONNX file runs on the CPU"),
        ("MODEL cat.jpg --model deit_tiny", "--model deit_tiny is not needed"),
        ("MODEL cat.jpg --code gone.py", "--code gone.py is not needed: "),
    ],
)
def test_a_mistake_is_one_sentence(
    words: str, sentence: str, exported: Path, tmp_path: Path, capsys: Output
) -> None:
    (tmp_path / "text.onnx").write_text("hello")
    plain = onnx.load(str(exported))
    del plain.metadata_props[:]
    onnx.save(plain, str(tmp_path / "plain.onnx"))
    places = {"TEXT": "text.onnx", "PLAIN": "plain.onnx"}
    given = [str(tmp_path / places[w]) if w in places else w for w in words.split()]
    given = [str(exported) if word == "MODEL" else word for word in given]
    assert main(["predict", *given]) == 2
    assert sentence in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("command", ["eval", "show"])
def test_other_commands_ask_for_the_weights(
    command: str, exported: Path, capsys: Output
) -> None:
    assert main([command, str(exported)]) == 2
    told = capsys.readouterr().err.splitlines()[-1]
    assert "is an exported graph, without weights" in told


def test_onnx_runtime_reports_nothing_and_writes_nothing_at_home(
    exported: Path, photos: Path, tmp_path: Path
) -> None:
    words = ["predict", str(exported), str(photos / "ant" / "00.jpg")]
    env = {**os.environ, "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    env.pop("ORT_DISABLE_TELEMETRY")  # conftest.py sets it for all tests
    done = subprocess.run(
        [sys.executable, "-m", "t2t", *words],
        env=env,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert [*tmp_path.iterdir()] == []


def test_a_missing_package_is_one_sentence(
    exported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(UserError, match="pip install onnxruntime"):
        OnnxPredictor(exported)


def test_threads_follow_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert onnx_predictor.threads_here() == 3
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(onnx_predictor, "num_cores", lambda: 5)
    assert onnx_predictor.threads_here() == 5


def test_probabilities_of_several_classes_are_sigmoids(
    on_onnx: OnnxPredictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits = np.array([[-200.0, 0.0, 200.0]], np.float32)
    assert onnx_predictor.sigmoid(logits).tolist() == [[0.0, 0.5, 1.0]]


def test_classes_that_do_not_fit_the_outputs_are_one_sentence(
    exported: Path, tmp_path: Path
) -> None:
    model = onnx.load(str(exported))
    strings = {each.key: each.value for each in model.metadata_props}
    onnx.helper.set_model_props(model, {**strings, "class_names": '["ant"]'})
    onnx.save(model, str(tmp_path / "few.onnx"))
    with pytest.raises(UserError, match="but names 1 classes: export it again"):
        OnnxPredictor(tmp_path / "few.onnx")
    onnx.helper.set_model_props(model, {**strings, "image_size": "[9, 9]"})
    onnx.save(model, str(tmp_path / "small.onnx"))
    with pytest.raises(
        UserError, match=r"but names \[batch, 3, 9, 9\]: export it again"
    ):
        OnnxPredictor(tmp_path / "small.onnx")


def fix_batch(graph: Any) -> None:
    graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2


def output_twice(graph: Any) -> None:
    copy = onnx.helper.make_node("Identity", [graph.output[0].name], ["copy"])
    graph.node.append(copy)
    graph.output.add().CopyFrom(graph.output[0])
    graph.output[1].name = "copy"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (fix_batch, r"the shape \[2, 3, 16, 16\], but names \[batch, 3, 16, 16\]"),
        (output_twice, r"has 1 inputs and 2 outputs instead of one each: export it"),
    ],
)
def test_a_graph_of_another_form_is_one_sentence(
    change: Callable[[Any], None], sentence: str, exported: Path, tmp_path: Path
) -> None:
    model = onnx.load(str(exported))
    change(model.graph)
    onnx.save(model, str(tmp_path / "other.onnx"))
    with pytest.raises(UserError, match=sentence):
        OnnxPredictor(tmp_path / "other.onnx")


@pytest.mark.parametrize(
    ("shape", "kind", "sentence"),
    [
        (
            ["n", 3, 8],
            "FLOAT",
            r"the shape \['n', 3, 8\], but names \[batch, 3, 8, 8\]",
        ),
        (["n", 3, 8, 8, 1], "FLOAT", r"but names \[batch, 3, 8, 8\]"),
        (None, "FLOAT", r"the shape \[\], but names \[batch, 3, 8, 8\]"),
        (["n", 3, 8, 8], "UINT8", r"takes a tensor\(uint8\), but its metadata names"),
    ],
)
def test_another_input_is_one_sentence(
    shape: Any, kind: str, sentence: str, on_onnx: OnnxPredictor, tmp_path: Path
) -> None:
    metadata = replace(on_onnx.metadata, image_size=(8, 8)).to_strings()
    model = small_graph(shape, kind, len(on_onnx.class_names))
    onnx.helper.set_model_props(model, metadata)
    onnx.save(model, str(tmp_path / "other.onnx"))
    with pytest.raises(UserError, match=sentence):
        OnnxPredictor(tmp_path / "other.onnx")


def small_graph(shape: Any, kind: str, num_classes: int) -> Any:
    """A graph that takes images of any form, and outputs zeros."""
    types = onnx.TensorProto
    images = onnx.helper.make_tensor_value_info("x", getattr(types, kind), shape)
    logits = onnx.helper.make_tensor_value_info("y", types.FLOAT, ["n", num_classes])
    numbers = [0.0] * num_classes
    zeros = onnx.helper.make_tensor("zeros", types.FLOAT, [1, num_classes], numbers)
    graph = onnx.helper.make_graph(
        [
            onnx.helper.make_node("Size", ["x"], ["size"]),
            onnx.helper.make_node("Cast", ["size"], ["number"], to=types.FLOAT),
            onnx.helper.make_node("Mul", ["number", "zeros"], ["y"]),
        ],
        "small",
        [images],
        [logits],
        [zeros],
    )
    opset = onnx.helper.make_opsetid("", 17)
    return onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8)


def test_a_graph_that_fails_is_one_sentence(on_onnx: OnnxPredictor) -> None:
    with pytest.raises(UserError, match=r"cannot compute a batch of the shape \[1, 3,"):
        on_onnx.outputs(np.zeros((1, 3, 5, 5), np.uint8))


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("mean", "[0.5]"),
        ("std", "[1, 1, 0]"),
        ("image_size", "[0, 9]"),
        ("image_size", '"big"'),
        ("crop_fraction", "7"),
        ("class_names", "{"),
        ("class_names", "[" * 9000),
        ("output", '"words"'),
    ],
)
def test_damaged_metadata_is_one_sentence(
    key: str, text: str, on_onnx: OnnxPredictor
) -> None:
    strings = on_onnx.metadata.to_strings()
    assert ExportMetadata.from_strings(strings, "m") == on_onnx.metadata
    with pytest.raises(UserError, match="m has damaged metadata"):
        ExportMetadata.from_strings({**strings, key: text}, "m")
    assert json.loads(strings["t2t_version"]) == t2t.__version__


def test_boxes_are_those_of_any_batch() -> None:
    heights = np.array([33, 480, 1000])
    boxes = center_boxes(heights, heights * 2, (24, 16), 0.9)
    assert (boxes[:, 0] >= 0).all()
    assert boxes.dtype == np.float32
    one = center_boxes(heights[:1], heights[:1] * 2, (24, 16), 0.9)
    assert np.array_equal(one, boxes[:1])


def test_the_sigmoid_is_torchs_and_overflows_nowhere() -> None:
    logits = np.array([-200, -3, -0.5, 0, 0.5, 3, 200], np.float32)
    expected = torch.from_numpy(logits).sigmoid().numpy()
    np.testing.assert_allclose(sigmoid(logits), expected, atol=1e-6)


def test_a_probability_at_the_threshold_is_a_label() -> None:
    predictor = object.__new__(OnnxPredictor)
    predictor.is_multilabel, predictor.threshold = True, 0.5
    at, below = (ClassProbability(n, "a", "a", 0.5 - n / 100) for n in range(2))
    assert predictor._prediction("x", (at, below), None).classes == (at,)
    assert predictor._prediction("x", (below,), None).classes == ()


def test_a_graph_that_gives_nan_is_one_sentence(
    exported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Damaged:
        def run(self, names: None, inputs: dict[str, Any]) -> list[np.ndarray]:
            return [np.array([[0.0, np.nan]], np.float32)]

    predictor = OnnxPredictor(exported)
    monkeypatch.setattr(predictor, "session", Damaged())
    with pytest.raises(UserError, match="outputs NaN or infinity: it is damaged"):
        predictor.outputs(np.zeros((1, 3, 24, 24), np.uint8))
