"""A figure of pictures in titled columns."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from t2t.analysis.picture_figure import FONT_SIZE, GAP, draw_table, enlarged
from t2t.errors import UserError


def test_every_picture_is_in_its_place(tmp_path: Path) -> None:
    reds = torch.zeros(2, 3, 64, 32, dtype=torch.uint8)
    reds[:, 0] = torch.tensor([100, 200], dtype=torch.uint8)[:, None, None]
    grays = torch.full((2, 1, 64, 32), 7, dtype=torch.uint8)
    long = "a title that is much wider than its narrow pictures"
    file = draw_table({"image": reds, long: grays}, tmp_path / "seen.png")
    drawn = np.asarray(Image.open(file).convert("RGB"))
    top = FONT_SIZE + 2 * GAP
    pixels = drawn[top:].reshape(-1, 3)
    area = 128 * 256  # each is enlarged four times
    for colour in ((100, 0, 0), (200, 0, 0), (7, 7, 7)):
        count = (pixels == colour).all(1).sum()
        assert count == (2 * area if colour == (7, 7, 7) else area)
    first, second = ((drawn == (each, 0, 0)).all(2).nonzero() for each in (100, 200))
    assert first[0].max() < second[0].min()  # a row for each image
    assert first[1].min() == second[1].min() == GAP
    gray = (drawn[top:] == (7, 7, 7)).all(2).nonzero()
    assert gray[1].min() > first[1].max()
    titles = drawn[:top, gray[1].min() :]
    assert (titles < 128).any()  # something is written above
    assert (drawn[:, -1] == 255).all()


def test_large_pictures_keep_their_size_and_opacity_is_left_out() -> None:
    images = torch.randint(0, 256, (1, 4, 200, 150), dtype=torch.uint8)
    found = enlarged(images)
    assert found.shape == (1, 200, 150, 3)
    assert np.array_equal(found[0, :, :, 1], images[0, 1].numpy())


@pytest.mark.parametrize("num", [None, 0])
def test_nothing_to_draw_is_refused(num: int | None, tmp_path: Path) -> None:
    empty = {} if num is None else {"image": torch.zeros(0, 3, 8, 8, dtype=torch.uint8)}
    with pytest.raises(UserError, match="no pictures to draw"):
        draw_table(empty, tmp_path / "seen.png")
    assert not [*tmp_path.iterdir()]
