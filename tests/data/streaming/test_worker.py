"""A worker writes images up to the end of its block, and no further."""

import numpy as np
import pytest
import torch

from t2t.data.decoding.decode import DecodeOptions
from t2t.data.sources import ArraySource
from t2t.data.streaming.image_reader import ImageReader
from t2t.data.streaming.shared_memory import Block, ImageKind


@pytest.mark.parametrize(("room", "num_written"), [(128, 2), (127, 1), (63, 0)])
def test_what_does_not_fit_is_left(room: int, num_written: int) -> None:
    images = torch.full((2, 1, 8, 8), 9, dtype=torch.uint8)
    array = np.zeros(256, dtype=np.uint8)
    reader = ImageReader(ArraySource(images), DecodeOptions(channels=1), array, 1)
    wanted = np.array([[0, 0, 0], [1, 0, 0]])
    found = reader.read_into(Block(10, room), wanted, True)
    expected = [(ImageKind.PLANAR, 10 + 64 * n, 64, 8, 8, 1) for n in range(2)]
    assert [*map(tuple, found.rows.tolist())] == expected[:num_written]
    assert found.num_bytes_missing == (64 if num_written < 2 else 0)
    assert np.flatnonzero(array).tolist() == [*range(10, 10 + 64 * num_written)]
