"""The limits within which an export may differ from PyTorch."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from t2t.deployment import accuracy
from t2t.deployment import int8 as int8_module
from t2t.deployment.check_images import (
    MAX_IMAGES,
    CheckImages,
    LabelledImages,
    find_labelled,
    images_in,
)
from t2t.deployment.export import other_size
from t2t.deployment.int8 import compare_classes
from t2t.deployment.parity import check_parity
from t2t.errors import UserError
from t2t.models.trained import load_trained

IMAGES = CheckImages((torch.zeros(5, 3, 4, 4, dtype=torch.uint8),), "5 images")


@pytest.mark.parametrize(
    ("largest", "difference", "is_allowed"),
    [
        (0.1, 0.9e-4, True),
        (0.1, 1.1e-4, False),
        (5.0, 4.5e-4, True),
        (5.0, 5.5e-4, False),
    ],
)
def test_the_tolerance_is_relative_above_one(
    largest: float, difference: float, is_allowed: bool
) -> None:
    def reference(images: Tensor) -> Tensor:
        return torch.full((len(images), 2), largest)

    def run(images: Tensor) -> np.ndarray:
        return reference(images).numpy() - np.float32(difference)

    if is_allowed:
        parity = check_parity("It", run, reference, IMAGES)
        assert parity.largest_difference == pytest.approx(difference, rel=0.01)
    else:
        with pytest.raises(UserError, match="It is not exported"):
            check_parity("It", run, reference, IMAGES)


def test_one_image_runs_alone_and_the_others_as_a_batch() -> None:
    sizes = []

    def run(images: Tensor) -> np.ndarray:
        sizes.append(len(images))
        return np.zeros((len(images), 2), np.float32)

    check_parity("It", run, lambda images: torch.from_numpy(run(images)), IMAGES)
    assert sorted({*sizes}) == [1, 4]


def test_a_single_image_is_also_a_batch_of_two() -> None:
    """A graph that is fixed to one image is not exported."""
    lone = CheckImages((torch.zeros(1, 3, 4, 4, dtype=torch.uint8),), "one image")

    def reference(images: Tensor) -> Tensor:
        return torch.ones(len(images), 2)

    with pytest.raises(UserError, match="gives other shapes"):
        check_parity("It", lambda images: np.ones((1, 2)), reference, lone)
    parity = check_parity(
        "It", lambda images: reference(images).numpy(), reference, lone
    )
    assert str(parity) == "equals PyTorch exactly (largest output 1) on one image"


@pytest.mark.parametrize(("num_changed", "is_allowed"), [(1, True), (2, False)])
def test_int8_gives_three_of_four_images_the_same_class(
    num_changed: int, is_allowed: bool
) -> None:
    def float32(images: Tensor) -> np.ndarray:
        return np.eye(2, dtype=np.float32)[[0] * len(images)]

    def int8(images: Tensor) -> np.ndarray:
        classes = [1] * num_changed + [0] * (len(images) - num_changed)
        return np.eye(2, dtype=np.float32)[classes]

    if is_allowed:
        stated = compare_classes(float32, int8, IMAGES, multilabel=False)
        assert "the same class as float32 on 80 % of 5 images" in stated
    else:
        with pytest.raises(UserError, match="export it without int8"):
            compare_classes(float32, int8, IMAGES, multilabel=False)


@pytest.mark.parametrize(
    ("num_images", "lost", "is_allowed"),
    [(1000, 1.9, True), (1000, 2.1, False), (50, 4.0, True), (50, 6.0, False)],
)
def test_int8_may_lose_two_points_or_two_images(
    num_images: int, lost: float, is_allowed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    top1 = {"float32": 90.0, "int8": 90.0 - lost}
    monkeypatch.setattr(int8_module, "top1_of", lambda *given: top1)
    labelled: Any = LabelledImages(range(num_images), "some images")  # type: ignore[arg-type]
    given: Any = (None, None, None, labelled, None)
    if is_allowed:
        assert int8_module.compare_accuracy(*given).startswith("Top-1 ")
    else:
        with pytest.raises(UserError, match="int8 loses too much"):
            int8_module.compare_accuracy(*given)


def test_only_images_count_not_what_fills_the_last_batch(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three images in batches of two, of which the model knows two."""
    for name in ("ant", "bee"):
        (tmp_path / name).mkdir()
    Image.new("RGB", (24, 24)).save(tmp_path / "ant" / "0.png")
    Image.new("RGB", (24, 24)).save(tmp_path / "ant" / "1.png")
    Image.new("RGB", (24, 24)).save(tmp_path / "bee" / "2.png")
    monkeypatch.setattr(accuracy, "BATCH_SIZE", 2)
    trained = load_trained(weights)
    labelled = find_labelled(trained, str(tmp_path), 1000)
    assert labelled is not None
    sizes = []

    def always_ant(images: Tensor) -> np.ndarray:
        sizes.append(len(images))
        return np.eye(4, dtype=np.float32)[[0] * len(images)]

    found = accuracy.top1_of({"it": always_ant}, trained, labelled)
    assert found["it"] == pytest.approx(200 / 3)
    assert sizes == [2, 1]


def test_a_folder_is_checked_on_a_few_of_its_images(tmp_path: Path) -> None:
    for number in range(3 * MAX_IMAGES):
        Image.new("RGB", (4, 4)).save(tmp_path / f"{number:02}.png")
    found = images_in([str(tmp_path)])
    assert len(found) == MAX_IMAGES
    assert Path(found[-1]).name == "45.png"


def test_any_size_is_checked_at_a_larger_one_that_is_not_square() -> None:
    assert other_size((16, 16)) == (32, 24)
    assert other_size((224, 224)) == (336, 280)
