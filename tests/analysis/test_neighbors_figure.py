"""The picture of images and their nearest ones."""

from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

from t2t.analysis import neighbors_figure
from t2t.analysis.neighbors_figure import CaptionedImage, draw_neighbors


def image(level: int, title: str, channels: int = 3) -> CaptionedImage:
    pixels = torch.full((1, channels, 6, 4), level, dtype=torch.uint8)
    return CaptionedImage(pixels, title, "0.900")


def test_a_row_has_the_image_and_its_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Figure] = []
    monkeypatch.setattr(
        neighbors_figure, "save_figure", lambda figure, path, dpi: drawn.append(figure)
    )
    rows = [
        (image(0, "one.png"), [image(1, "ant"), image(2, "b$e$e")]),
        (image(3, "two.png", channels=1), [image(4, "cat", channels=1)]),
    ]
    draw_neighbors(rows, "n.png", "near")
    panels = [axes for axes in drawn[0].axes if axes.get_images()]
    titles = [axes.get_title() for axes in panels]
    assert titles == [
        f"{name}\n0.900" for name in ("one.png", "ant", "b$e$e", "two.png", "cat")
    ]
    shown = [np.asarray(axes.get_images()[0].get_array()) for axes in panels]
    assert [each.max() for each in shown] == [0, 1, 2, 3, 4]
    assert {each.shape for each in shown} == {(6, 4, 3)}
    assert drawn[0].get_suptitle() == "near"


def test_it_is_written(tmp_path: Path) -> None:
    rows = [(image(255, "a"), [image(9, "b")])]
    path = draw_neighbors(rows, tmp_path / "n.png", "near")
    with Image.open(path) as picture:
        assert min(picture.size) > 200
