"""A model that takes images as they are sees what evaluation shows it."""

import copy
import io
import os
import resource
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from t2t.data.batches import LoaderOptions, evaluation_batches
from t2t.data.crops import CenterCrop
from t2t.data.decoding.damage import DamagedImage
from t2t.data.decoding.decode import decode_each
from t2t.data.sources import open_source
from t2t.errors import LocalError, UserError
from t2t.serving import predictor as module
from t2t.serving import read_image
from t2t.serving.predictor import Prediction, Predictor


def test_probabilities_are_those_of_the_model(predictor: Predictor) -> None:
    trained = predictor.trained
    generator = torch.Generator().manual_seed(7)
    pixels = torch.randint(256, (3, 20, 20), generator=generator, dtype=torch.uint8)
    (prediction,) = predictor.predict(pixels, top=6)
    # 16 pixels are 0.8 of 20: nothing is resized, only cut.
    seen = pixels[:, 2:18, 2:18] / 255
    mean, std = (torch.tensor(v)[:, None, None] for v in (trained.mean, trained.std))
    with torch.inference_mode():
        expected = predictor.model(((seen - mean) / std)[None]).softmax(1)[0]
    for guess in prediction.classes:
        assert guess.class_name == trained.class_names[guess.index] == guess.name
        assert guess.probability == pytest.approx(
            float(expected[guess.index]), abs=1e-5
        )
    order = [guess.index for guess in prediction.classes]
    assert order == expected.argsort(descending=True).tolist()
    assert prediction.best is prediction.classes[0]


def test_one_by_one_gives_what_a_batch_gives(
    predictor: Predictor, photos: Path
) -> None:
    paths = [str(photos / "ant" / "00.jpg"), str(photos / "bee" / "01.png")]
    one_by_one = Predictor(predictor.trained, "cpu")
    head = predictor.model.get_parameter("head.weight")
    for _ in range(2):
        expected = predictor.predict(paths, top=6)
        found = list(one_by_one.predict_each(paths * 2, top=6, batch_size=1))
        for outcome, prediction in zip(found, expected * 2, strict=True):
            assert isinstance(outcome, Prediction)
            assert [guess.index for guess in outcome.classes] == [
                guess.index for guess in prediction.classes
            ]
            for one, other in zip(outcome.classes, prediction.classes, strict=True):
                assert one.probability == pytest.approx(other.probability, abs=1e-5)
        with torch.no_grad():  # packed copies must follow what they were made of
            for weight in predictor.model.parameters():
                weight.neg_()
    assert head is one_by_one.model.get_parameter("head.weight")


def test_the_pixels_are_evaluations(predictor: Predictor, photos: Path) -> None:
    trained = predictor.trained
    source = open_source(photos, "all")
    batches = evaluation_batches(
        source,
        batch_size=9,
        crop=CenterCrop(size=trained.image_size, fraction=trained.crop_fraction),
        device="cpu",
        loader_options=LoaderOptions(resident=False, num_workers=1),
    )
    seen = []
    original = predictor._classify

    def watched(pixels: torch.Tensor, top: int) -> object:
        seen.append(pixels)
        return original(pixels, top)

    predictor._classify = watched  # type: ignore[method-assign, assignment]
    try:
        predictor.predict([source.name(i) for i in range(len(source))], batch_size=20)
    finally:
        del predictor._classify
    expected = torch.cat([batch.images[batch.valid] for batch in batches])
    assert torch.equal(torch.cat(seen), expected)
    alone = [predictor.model_input(source.name(i)) for i in range(len(source))]
    assert torch.equal(torch.cat(alone), expected)
    with pytest.raises(UserError, match=r"nowhere.png cannot be read: No such file"):
        predictor.model_input("nowhere.png")


def test_an_image_is_the_same_in_every_form(predictor: Predictor, photos: Path) -> None:
    path = photos / "bee" / "01.png"
    picture = Image.open(path)
    forms = [
        str(path),
        path,
        path.read_bytes(),
        picture,
        np.array(picture),
        torch.from_numpy(np.array(picture)).permute(2, 0, 1),
    ]
    predictions = predictor.predict(forms, top=2)
    assert len({prediction.classes for prediction in predictions}) == 1
    names = [str(path), str(path), "image 2", str(path), "image 4", "image 5"]
    assert [prediction.image for prediction in predictions] == names


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK", "I", "I;16"])
def test_pictures_of_any_mode_are_taken(
    mode: str, predictor: Predictor, photos: Path
) -> None:
    grey = Image.open(photos / "bee" / "01.png").convert("L")
    picture = grey.convert(mode)
    if mode == "I;16":
        picture = Image.fromarray(np.array(grey).astype(np.uint16) * 257)
    if mode == "I":
        picture = Image.fromarray(np.array(grey).astype(np.int32) * 257)
    (of_mode,) = predictor.predict(picture)
    if mode not in ("1", "CMYK"):
        assert of_mode.classes == predictor.predict(grey)[0].classes


def test_a_picture_that_cannot_be_read_is_named(
    predictor: Predictor, photos: Path, tmp_path: Path
) -> None:
    for whole in (photos / "ant" / "00.jpg", photos / "bee" / "01.png"):
        cut = tmp_path / whole.name
        cut.write_bytes(whole.read_bytes()[:-100])
        with Image.open(cut) as one, Image.open(whole) as other:
            damaged, seen = predictor.predict_each([one, other], top=1)
        assert isinstance(damaged, DamagedImage)
        assert damaged.name == str(cut)
        assert isinstance(seen, Prediction)


def test_one_picture_may_be_given_many_times(
    predictor: Predictor, tmp_path: Path
) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (300, 300, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "large.png")
    with Image.open(tmp_path / "large.png") as picture:  # read when it is used
        predictions = predictor.predict([picture] * 8, top=1)
    assert len({prediction.classes for prediction in predictions}) == 1


def test_damaged_weights_are_reported(predictor: Predictor) -> None:
    model = copy.deepcopy(predictor.model)
    torch.nn.init.constant_(model.get_parameter("head.weight"), torch.nan)
    broken = Predictor(replace(predictor.trained, model=model), "cpu")
    with pytest.raises(UserError, match="NaN or infinity: its weights are damaged"):
        broken.predict(torch.zeros(3, 8, 8, dtype=torch.uint8))


def test_a_turned_photograph_is_turned_back(
    predictor: Predictor, photos: Path, tmp_path: Path
) -> None:
    picture = Image.open(photos / "ant" / "00.jpg")
    exif = picture.getexif()
    exif[0x0112] = 6
    picture.save(tmp_path / "turned.jpg", exif=exif, quality=100, subsampling=0)
    turned = Image.open(tmp_path / "turned.jpg")
    by_path, by_picture = predictor.predict([tmp_path / "turned.jpg", turned], top=1)
    assert by_path.best.index == by_picture.best.index
    assert by_path.best.probability == pytest.approx(by_picture.best.probability, 0.02)


def test_each_goes_on_after_what_cannot_be_read(
    predictor: Predictor, photos: Path, tmp_path: Path
) -> None:
    text = tmp_path / "text.png"
    text.write_text("not a picture")
    good = [str(photos / "ant" / "00.jpg"), str(photos / "bee" / "01.png")]
    words = [str(tmp_path / "none.png"), good[0], str(text), good[1], str(tmp_path)]
    for batch_size in (1, 2, 5):
        outcomes = list(predictor.predict_each(words, top=1, batch_size=batch_size))
        kinds = [type(outcome) for outcome in outcomes]
        wrong, right = DamagedImage, Prediction
        assert kinds == [wrong, right, wrong, right, wrong]
        named = [getattr(each, "image", getattr(each, "name", "")) for each in outcomes]
        assert named == words
    with pytest.raises(UserError, match=r"none\.png cannot be read: No such file"):
        predictor.predict(words)


@pytest.mark.parametrize("kind", ["file", "folder", "picture"])
def test_no_image_is_damaged_where_too_many_files_are_open(
    predictor: Predictor, photos: Path, kind: str
) -> None:
    path = photos / "ant" / "00.jpg"
    picture = Image.new("RGB", (8, 8))
    picture.load = lambda: path.open("rb")  # type: ignore[assignment,method-assign]
    outcomes = {
        "file": predictor.predict_named([str(path)], io.StringIO()),
        "folder": predictor.predict_named([str(path.parent)], io.StringIO()),
        "picture": predictor.predict_each([picture]),
    }[kind]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    told = r"was not read \(Too many open files\).*, or try a smaller --batch-size\."
    with open(os.devnull) as last:
        resource.setrlimit(resource.RLIMIT_NOFILE, (last.fileno() + 1, hard))
        try:
            with pytest.raises(LocalError, match=told):
                list(outcomes)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_images_are_decoded_few_at_a_time_where_they_are_large(
    predictor: Predictor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sides = [30, 30, 90, 30, 30, 30]
    paths = [tmp_path / f"{n}.{kind}" for n, kind in enumerate(["tif", "jpg"] * 3)]
    for path, side in zip(paths, sides, strict=True):
        Image.new("RGB", (side, side), "red").save(path)
    expected = predictor.predict(paths)
    sizes: list[int] = []

    def watched(images: list[bytes], **named: Any) -> list[torch.Tensor | DamagedImage]:
        sizes.append(len(images))
        return decode_each(images, **named)

    monkeypatch.setattr(module, "decode_each", watched)
    monkeypatch.setattr(read_image, "_PIXELS_DECODED", 2 * 30 * 30)
    assert predictor.predict(paths) == expected
    assert sizes == [2, 1, 2, 1]
    monkeypatch.setattr(read_image, "_NUM_DECODED", 1)
    assert predictor.predict(paths) == expected
    assert sizes[4:] == [1] * 6


def test_what_is_no_image_is_refused(predictor: Predictor) -> None:
    with pytest.raises(UserError, match="float32 tensor of 3 × 8 × 8"):
        predictor.predict(torch.zeros(3, 8, 8))
    with pytest.raises(UserError, match="image 0 cannot be read: it has no pixels"):
        predictor.predict(torch.zeros(3, 0, 8, dtype=torch.uint8))
    with pytest.raises(UserError, match="image 0 is a int"):
        predictor.predict(3)
    with pytest.raises(UserError, match="must both be 1 or more"):
        predictor.predict([], top=0)
    assert predictor.predict([]) == []


def test_a_device_that_is_not_there_is_one_sentence(predictor: Predictor) -> None:
    with pytest.raises(UserError, match="device='gpu' cannot be used here"):
        Predictor(predictor.trained, "gpu")
    if not torch.cuda.is_available():
        with pytest.raises(UserError, match="device='cuda' cannot be used here"):
            Predictor(predictor.trained, "cuda")


@pytest.mark.parametrize("kind", ["int32", "float32", "unit"])
def test_wide_pixels_of_pillow_are_seen_as_their_values_mean(
    kind: str, predictor: Predictor
) -> None:
    grey = np.random.default_rng(0).integers(0, 256, (20, 24), np.uint8)
    wide = (grey / 255).astype(np.float32) if kind == "unit" else grey.astype(kind)
    (expected, found) = predictor.predict(
        [Image.fromarray(grey), Image.fromarray(wide)]
    )
    assert found.classes == expected.classes


def test_an_image_of_too_many_pixels_is_refused(predictor: Predictor) -> None:
    file = io.BytesIO()
    Image.new("1", (400, 300)).save(file, "PNG")
    strict = Predictor(predictor.trained, "cpu", max_pixels=100_000)
    (outcome,) = strict.predict_each([file.getvalue()])
    assert isinstance(outcome, DamagedImage)
    assert "its 400 × 300 pixels exceed the limit of 100,000" in outcome.reason
    assert isinstance(next(predictor.predict_each([file.getvalue()])), Prediction)
