"""The picture of what is taken for what."""

from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

from t2t.analysis import confusion_figure
from t2t.analysis.confusion_figure import draw_confusion
from t2t.analysis.figure import display_names
from t2t.errors import UserError


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is drawn without a folder is not left in the project."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("num_classes", [2, 10, 200])
def test_right_is_blue_and_wrong_is_red(num_classes: int, tmp_path: Path) -> None:
    confusion = torch.eye(num_classes, dtype=torch.int64) * 6
    confusion[0, 1] = 4
    names = [f"class {number}" for number in range(num_classes)]
    path = draw_confusion(confusion, names, tmp_path / "c.png", "photos")
    pixels = np.asarray(Image.open(path).convert("RGB")).astype(int)
    assert min(pixels.shape[:2]) > 500
    red, blue = pixels[..., 0], pixels[..., 2]
    assert (blue - red > 100).sum() > 50
    assert (red - blue > 60).sum() > 20


def test_rows_are_true_and_columns_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    figures: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda each, *_, **__: figures.append(each))
    confusion = torch.tensor([[6, 3, 0], [1, 8, 0], [0, 0, 0]])
    draw_confusion(confusion, ["ant", "bee", "cat"], "c.png", "photos")
    matrix, pairs = figures[0].axes
    cells = {text.get_position(): text.get_text() for text in matrix.texts}
    assert cells == {(0, 0): "6", (1, 0): "3", (0, 1): "1", (1, 1): "8"}
    assert [each.get_text() for each in matrix.get_yticklabels()] == ["ant", "bee"]
    assert (matrix.get_xlabel(), matrix.get_ylabel()) == ("predicted", "true")
    told = [text.get_text() for text in pairs.texts]
    assert told == ["ant → bee", " 3", "bee → ant", " 1"]
    assert figures[0].get_suptitle() == "photos   top-1 77.78 %"
    confusion[0, 2] = 1  # a class without images that another is taken for
    draw_confusion(confusion, ["ant", "bee", "cat"], "c.png")
    labels = figures[1].axes[0].get_yticklabels()
    assert [each.get_text() for each in labels] == ["ant", "bee", "cat"]


def test_of_too_many_classes_those_in_most_mistakes_are_drawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    figures: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda each, *_, **__: figures.append(each))
    monkeypatch.setattr(confusion_figure, "_MAX_CLASSES", 2)
    num = 300_000  # whose table would take 720 GB
    # Four pairs of classes are about 8, but fewer images.
    pairs = torch.tensor([[7, 7, 7, 8, 8, 8, 9, 9], [7, 8, 9, 7, 8, 9, 8, 9]])
    amounts = torch.tensor([2, 1, 5, 1, 9, 2, 1, 4])
    confusion = torch.sparse_coo_tensor(
        pairs, amounts, (num, num), check_invariants=True
    )
    draw_confusion(confusion, [f"class {each}" for each in range(num)], "c.png")
    matrix, mistakes = figures[0].axes
    assert matrix.get_title() == "2 of 3 classes: most mistakes"
    names = [each.get_text() for each in matrix.get_yticklabels()]
    assert names == ["class 7", "class 9"]
    cells = {text.get_position(): text.get_text() for text in matrix.texts}
    assert cells == {(0, 0): "2", (1, 0): "5", (1, 1): "4"}
    # Shares are of all images of a class.
    (shown,) = matrix.get_images()
    expected = confusion_figure._WRONG(np.sqrt(5 / 8))
    assert np.allclose(shown.get_array()[0, 1], expected)
    told = [text.get_text() for text in mistakes.texts]
    assert told[:4] == ["class 7 → class 9", " 5", "class 8 → class 9", " 2"]
    assert told[4::2] == [
        f"class {pair}" for pair in ("7 → class 8", "8 → class 7", "9 → class 8")
    ]
    assert figures[0].get_suptitle() == "top-1 60.00 %"


def test_nothing_wrong_and_classes_without_images(tmp_path: Path) -> None:
    confusion = torch.zeros(1000, 1000, dtype=torch.int64)
    confusion[[3, 5], [3, 5]] = 2
    names = ["a very long name for a class of images", *map(str, range(999))]
    with Image.open(draw_confusion(confusion, names, tmp_path / "c.png")) as small:
        assert small.size[0] < 1500  # of two classes, not of a thousand


def test_a_file_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="could not be written"):
        draw_confusion(torch.eye(2).long(), "ab", tmp_path / "file" / "c.png")


def test_names_in_other_bytes_or_of_several_lines_are_escaped(tmp_path: Path) -> None:
    names = ["latin-\udce9", "two\nlines"]
    title = "photos \udce9"
    path = draw_confusion(torch.ones(2, 2).long(), names, tmp_path / "c.png", title)
    assert path.stat().st_size > 5_000


def test_long_names_that_begin_alike_differ() -> None:
    names = [f"what the class is called in full, number {each}" for each in range(20)]
    assert display_names(names)[12] == "what the class …umber 12"
    assert len({*display_names(names)}) == 20
    names = ["cat, black", "cat, white", "great white shark, white shark, man-eater"]
    assert display_names(names) == ["cat, black", "cat, white", "great white shark"]


def test_a_dollar_in_a_name_is_a_dollar(tmp_path: Path) -> None:
    names = ["$x_{$", "costs $5 or $6"]
    path = draw_confusion(torch.ones(2, 2).long(), names, tmp_path / "c.png", "$y_{$")
    assert path.stat().st_size > 5_000
