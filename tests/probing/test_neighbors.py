"""The nearest images of an image."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.nn.functional as F
from PIL import Image
from rich.console import Console

import t2t
from t2t.errors import UserError


def found(weights: Path, images: Any, data: Path, **options: Any) -> Any:
    return t2t.neighbors(weights, images, data, device="cpu", **options)


def text_of(report: Any) -> str:
    console = Console(width=300)
    with console.capture() as captured:
        console.print(report.render())
    return captured.get()


def test_neighbors_are_those_with_the_most_similar_features(
    weights: Path, images: Path
) -> None:
    queries = sorted((images / "val").rglob("*.png"))[:3]
    report = found(weights, queries, images, top=5)
    assert (report.split, report.num_images) == ("train", 48)
    train, val = (
        t2t.features(weights, images, split=split, device="cpu")
        for split in ("train", "val")
    )
    for query, nearest in zip(queries, report.found, strict=True):
        row = val.values[val.names.index(str(query))]
        similarity = F.cosine_similarity(row[None], train.values)
        order = similarity.argsort(descending=True)[:5].tolist()
        assert nearest.image == str(query)
        assert [each.name for each in nearest.neighbors] == [
            train.names[index] for index in order
        ]
        for each, index in zip(nearest.neighbors, order, strict=True):
            assert each.similarity == pytest.approx(float(similarity[index]), abs=1e-4)
            assert each.class_name == Path(each.name).parent.name


def test_an_image_is_not_its_own_neighbor(weights: Path, own_images: Path) -> None:
    image = own_images / "a" / "00.png"
    copy = own_images / "b" / "copy.png"
    copy.write_bytes(image.read_bytes())
    (nearest,) = found(weights, str(image), own_images, top=40).found
    assert nearest.neighbors[0].name == str(copy)
    assert nearest.neighbors[0].similarity == pytest.approx(1, abs=1e-5)
    assert str(image) not in {each.name for each in nearest.neighbors}
    assert len(nearest.neighbors) == 30
    with Image.open(image) as opened:
        (of_picture,) = found(weights, np.asarray(opened), own_images, top=3).found
    # Pixels have no name to leave out, and both files hold them.
    assert [round(each.similarity, 4) for each in of_picture.neighbors[:2]] == [1, 1]


def test_the_report_is_a_table_json_and_a_picture(
    weights: Path, images: Path, own_images: Path, tmp_path: Path
) -> None:
    query = own_images / "a" / "00.png"
    report = found(weights, [query], images, top=2, num_images=12)
    facts = json.loads(json.dumps(report.as_json()))
    (image,) = facts["images"]
    assert (image["image"], facts["num_images"]) == (str(query), 12)
    names = [each["path"] for each in image["neighbors"]]
    assert len(names) == 2
    assert all(name in text_of(report) for name in (*names, "similarity", "class"))
    path = report.draw(tmp_path / "n.png")
    with Image.open(path) as picture:
        assert min(picture.size) > 200


def test_images_without_labels_are_searched_too(weights: Path, tmp_path: Path) -> None:
    for number in range(4):
        color = (60 * number, 9, 200 - 60 * number)
        Image.new("RGB", (9, 9), color).save(tmp_path / f"{number}.png")
    report = found(weights, tmp_path / "1.png", tmp_path)
    assert {each.class_name for each in report.found[0].neighbors} == {""}
    assert len(report.found[0].neighbors) == 3
    assert "class" not in text_of(report)


def test_a_damaged_image_is_an_error(weights: Path, own_images: Path) -> None:
    broken = own_images / "broken.png"
    broken.write_bytes(b"nothing")
    with pytest.raises(UserError, match=r"broken\.png cannot be read"):
        found(weights, str(broken), own_images)
    with pytest.raises(UserError, match="precision='fp8' is not known"):
        found(weights, str(own_images / "a" / "00.png"), own_images, precision="fp8")
    with pytest.raises(UserError, match="top=0 is too small"):
        found(weights, str(own_images / "a" / "00.png"), own_images, top=0)
