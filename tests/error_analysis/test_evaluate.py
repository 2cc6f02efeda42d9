"""`t2t.evaluate` and its page: numbers, findings, and unusual data."""

import csv
import errno
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pandas
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from torch import nn

import t2t
from t2t.analysis.html_page import HtmlPage
from t2t.cli import main
from t2t.error_analysis.findings import find_confusions
from t2t.error_analysis.predictions import Predictions
from t2t.models.create import create_model
from t2t.models.weights import save

SMALL = {"dim": 16, "depth": 1, "num_heads": 1, "token_dim": 8, "image_size": 8}
Weights = Callable[..., Path]


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Weights:
    """Makes a model of some classes that has learned nothing, but is sure."""

    def make(names: list[str], channels: int = 3) -> Path:
        folder = tmp_path_factory.mktemp("weights")
        torch.manual_seed(0)
        model = create_model(
            "t2t_vit_7_32", num_classes=len(names), in_channels=channels, **SMALL
        )
        nn.init.normal_(model.head.weight, std=8.0)
        extra = {
            "image_size": [8, 8],
            "channels": channels,
            "mean": [0.5] * channels,
            "std": [0.3] * channels,
            "crop_fraction": 1.0,
        }
        save(model, folder, name="t2t_vit_7_32", class_names=names, extra=extra)
        return folder

    return make


def noise(number: int, side: int = 8) -> Image.Image:
    """An image of its own."""
    pixels = np.random.default_rng(number).integers(0, 256, (side, side, 3))
    return Image.fromarray(pixels.astype(np.uint8))


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two classes; three validation images are training images too, one as a dog."""
    folder = tmp_path / "photos"
    number = 0
    for split, num in (("train", 24), ("val", 9)):
        for name in ("cat", "dog"):
            (folder / split / name).mkdir(parents=True)
            for each in range(num):
                noise(number).save(folder / split / name / f"{each:02}.png")
                number += 1
    val = folder / "val" / "cat"
    shutil.copy(val / "00.png", folder / "train" / "cat" / "copy.png")
    shutil.copy(val / "01.png", folder / "train" / "dog" / "copy.png")
    large = Image.open(val / "02.png").resize((32, 32), Image.Resampling.BICUBIC)
    large.save(folder / "train" / "cat" / "large.jpg", quality=95)
    return folder


def rows_of(page: Path) -> list[dict[str, str]]:
    with page.with_suffix(".csv").open(newline="") as file:
        return [*csv.DictReader(file)]


def test_the_result_has_numbers_paths_and_a_frame(
    weights: Weights, photos: Path
) -> None:
    found = t2t.evaluate(weights(["cat", "dog"]), photos, device="cpu")
    frame = found.to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert found.num_images == len(frame) == 18
    assert found.top1 == pytest.approx(100 * frame["correct"].mean())
    assert found.macro_accuracy == pytest.approx(found.top1)  # as many of both
    wrong = frame[~frame["correct"]].sort_values("confidence", ascending=False)
    assert found.wrong_paths == wrong["path"].tolist()
    assert all(Path(path).is_file() for path in found.wrong_paths)
    assert [each.confidence for each in found.wrong] == wrong["confidence"].tolist()
    assert int(found.confusion.sum()) == 18
    assert found.as_json()["top1"] == pytest.approx(found.top1, abs=1e-4)
    assert f"{found.top1:.2f} %" in repr(found)
    assert f"{found.top1:.2f} %" in found._repr_html_()
    assert found.confusion_figure().axes


def test_another_image_size_interpolates_positions(
    weights: Weights, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = weights(["cat", "dog"])
    found = t2t.evaluate(file, photos, image_size=20, device="cpu")
    assert found.report.trained.image_size == (20, 20)
    words = ["eval", str(file), "--data", str(photos), "--image-size", "20x20"]
    assert main([*words, "--json", "--device", "cpu"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["image_size"] == [20, 20]
    assert told["top1"] == pytest.approx(found.top1, abs=1e-3)


def test_the_page_lists_what_went_wrong(
    weights: Weights, photos: Path, tmp_path: Path
) -> None:
    evaluation = t2t.evaluate(weights(["cat", "dog"]), photos, device="cpu")
    page = tmp_path / "mistakes.html"
    found = evaluation.save_report(page)
    rows = rows_of(page)
    listed = [row["path"] for row in rows if row["finding"] == "mistake"]
    assert listed == evaluation.wrong_paths
    pairs = [
        (Path(row["path"]).name, row["label"], row["other_path"], row["other_label"])
        for row in rows
        if row["finding"] == "near-duplicate"
    ]
    train = photos / "train"
    # Different labels come first.
    assert pairs[0] == ("01.png", "cat", str(train / "dog" / "copy.png"), "dog")
    assert sorted(pairs[1:]) == [
        ("00.png", "cat", str(train / "cat" / "copy.png"), "cat"),
        ("02.png", "cat", str(train / "cat" / "large.jpg"), "cat"),
    ]
    labels = [row for row in rows if row["finding"] == "wrong label"]
    assert {row["split"] for row in labels} <= {"train", "val"}
    assert all(float(row["label_probability"]) < 0.1 for row in labels)
    assert [each["other_path"] for each in found.as_json()["near_duplicates"]] == [
        pair[2] for pair in pairs
    ]
    text = page.read_text()
    assert "http" not in text
    assert 'src="data:image/png' in text
    assert "cat and dog" in text
    assert "3 pairs of images that are in the training images" in text


def test_without_training_images_duplicates_are_not_searched(
    weights: Weights, photos: Path, tmp_path: Path
) -> None:
    evaluation = t2t.evaluate(weights(["cat", "dog"]), photos / "val", device="cpu")
    found = evaluation.save_report(tmp_path / "m.html")
    assert found.duplicates == []
    assert "does not name its training images" in found.note
    assert "Not searched." in (tmp_path / "m.html").read_text()
    whole = t2t.evaluate(weights(["cat", "dog"]), photos, device="cpu")
    assert whole.findings(train_images=0).duplicates == []
    few = whole.findings(train_images=10)
    assert few.trained_on is not None
    assert len(few.trained_on) == 10
    assert "drawn from 51" in few.note


def test_copies_within_the_training_images(weights: Weights, photos: Path) -> None:
    shutil.copy(photos / "train/cat/03.png", photos / "train/dog/again.png")
    found = t2t.evaluate(
        weights(["cat", "dog"]), photos, split="train", device="cpu"
    ).findings()
    (pair,) = found.duplicates
    paths = [found.evaluated[row].path for row in pair[:2]]
    assert sorted(map(str, paths)) == [
        str(photos / "train/cat/03.png"),
        str(photos / "train/dog/again.png"),
    ]


def test_no_mistakes_at_all(weights: Weights, photos: Path, tmp_path: Path) -> None:
    run = weights(["cat", "dog"])
    shutil.rmtree(photos / "val")
    (photos / "val" / "cat").mkdir(parents=True)
    (photos / "val" / "dog").mkdir()
    before = t2t.evaluate(run, photos, split="train", device="cpu").predictions
    for number, each in enumerate(before):
        name = photos / "val" / each.predicted / f"{number}.png"
        shutil.copy(each.path, name)
    evaluation = t2t.evaluate(run, photos, device="cpu")
    assert evaluation.top1 == 100
    found = evaluation.save_report(tmp_path / "m.html", train_images=0)
    assert (len(found.mistakes), len(found.wrong_labels)) == (0, 0)
    assert found.confusions == []
    assert "every image is predicted as labelled" in (tmp_path / "m.html").read_text()
    assert rows_of(tmp_path / "m.html") == []


def test_many_classes_of_one_image_in_grey(weights: Weights, tmp_path: Path) -> None:
    names = [f"class {number:04}" for number in range(1000)]
    for number, name in enumerate(names[:40]):
        (tmp_path / "photos" / name).mkdir(parents=True)
        grey = noise(number, side=300).convert("L")
        grey.save(tmp_path / "photos" / name / "1.jpg", quality=30)
    evaluation = t2t.evaluate(weights(names, 1), tmp_path / "photos", device="cpu")
    page = tmp_path / "m.html"
    evaluation.save_report(page)
    text = page.read_text()
    assert "The 20 worst of 40 classes." in text
    assert len(rows_of(page)) >= len(evaluation.wrong) > 30
    assert len(text) < 3_000_000


def test_images_in_parquet_and_a_damaged_one(weights: Weights, tmp_path: Path) -> None:
    for split, num, first in (("train", 30, 0), ("validation", 12, 25)):
        images = []
        for number in range(first, first + num):
            noise(number).save(tmp_path / "image.png")
            images.append((tmp_path / "image.png").read_bytes())
        if split == "validation":
            images[7] = b"not an image"
        table = pa.table({"image": images, "label": [0, 1] * (num // 2)})
        pq.write_table(table, tmp_path / f"{split}-0.parquet")
    evaluation = t2t.evaluate(weights(["0", "1"]), tmp_path, device="cpu")
    assert evaluation.num_images == 11
    found = evaluation.save_report(tmp_path / "m.html")
    # Validation images 0 to 4 are training images 25 to 29, with other labels.
    assert sorted(pair[:2] for pair in found.duplicates) == [
        (number, 25 + number) for number in range(5)
    ]
    rows = [r for r in rows_of(tmp_path / "m.html") if r["finding"] == "near-duplicate"]
    assert re.search(r"validation-0\.parquet\[\d\]$", rows[0]["path"])
    assert all(row["label"] != row["other_label"] for row in rows)


def test_what_python_cannot_do_is_one_sentence(
    weights: Weights, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = weights(["cat", "dog"])
    evaluation = t2t.evaluate(run, photos, device="cpu")
    with pytest.raises(t2t.UserError, match=r"nowhere/m\.html could not be written"):
        evaluation.save_report(tmp_path / "nowhere" / "m.html")
    with monkeypatch.context() as full:
        error = OSError(errno.ENOSPC, "No space left on device")
        full.setattr(HtmlPage, "write", Mock(side_effect=error))
        with pytest.raises(t2t.UserError, match="No space left on device"):
            evaluation.save_report(tmp_path / "m.html")
    assert [*tmp_path.glob("*m.*")] == []
    with pytest.raises(t2t.UserError, match="train_images=-1 is too small"):
        evaluation.findings(train_images=-1)
    with pytest.raises(t2t.UserError, match="classes that the model does not know"):
        t2t.evaluate(weights(["owl", "fox"]), photos, device="cpu")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(t2t.UserError, match="runs as one process"):
        t2t.evaluate(run, photos)


def test_objects_are_evaluated_like_files(weights: Weights, photos: Path) -> None:
    run = weights(["cat", "dog"])
    by_path: Any = t2t.evaluate(run, photos / "val", device="cpu").to_pandas()
    pixels = np.stack([np.array(Image.open(path)) for path in by_path["path"]])
    labels = by_path["label"].tolist()
    by_array = t2t.evaluate(run, (pixels, labels), device="cpu").to_pandas()
    columns = ["label", "predicted", "confidence"]
    pandas.testing.assert_frame_equal(by_path[columns], by_array[columns])


def test_the_most_frequent_confusion_comes_first() -> None:
    values = {
        "index": torch.arange(6),
        "label": torch.tensor([0, 1, 1, 2, 1, 0]),
        "predicted": torch.tensor([1, 2, 2, 0, 1, 0]),
        "confidence": torch.tensor([0.9, 0.5, 0.6, 0.8, 0.7, 0.4]),
    }
    source: Any = None  # its images are not asked for
    predictions = Predictions(source, values, ("cat", "dog", "owl"))
    found = find_confusions(predictions)
    pairs = [(each.label, each.predicted, each.num_images) for each in found]
    assert pairs == [("dog", "owl", 2), ("cat", "dog", 1), ("owl", "cat", 1)]
    assert found[0].num_of_label == 3
    assert found[0].rows.tolist() == [2, 1]  # the surest first


def test_labels_may_be_in_a_table(weights: Weights, tmp_path: Path) -> None:
    for number in range(4):
        noise(number).save(tmp_path / f"{number}.png")
    rows = [f"{number}.png,{('cat', 'dog')[number % 2]}" for number in range(4)]
    table = tmp_path / "sheet.csv"
    table.write_text("\n".join(["picture,kind", *rows]))
    columns = "path=picture,label=kind"
    found = t2t.evaluate(
        weights(["cat", "dog"]), tmp_path, labels=table, label_columns=columns
    )
    assert found.num_images == 4
