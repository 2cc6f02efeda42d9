"""Buffers of images of different sizes."""

import pytest
import torch

from t2t.ops.ragged import Ragged, empty_rounded_up


def image(height, width, start):
    return (torch.arange(3 * height * width) + start).view(3, height, width).byte()


def test_joined_parts_hold_all_images_in_order():
    images = [image(2, 5, 0), image(4, 3, 50), image(1, 1, 90)]
    interleaved = image(3, 2, 7).permute(1, 2, 0).contiguous().permute(2, 0, 1)
    parts = [Ragged.from_images(images[:2]), Ragged.from_images([interleaved])]
    cat = Ragged.cat([*parts, Ragged.from_images(images[2:])])
    assert cat.interleaved.tolist() == [False, False, True, False]
    wanted = [images[0], images[1], interleaved, images[2]]
    for index, each in enumerate(wanted):
        assert torch.equal(cat.image(index), each)


def test_a_single_part_is_not_copied():
    part = Ragged.from_images([image(2, 2, 0)])
    assert Ragged.cat([part]) is part


@pytest.mark.parametrize("num_bytes", [1, 512, 513, 150_000_001, 2**28 - 1])
def test_rounded_buffers_have_few_sizes_and_waste_little(num_bytes):
    given = empty_rounded_up(num_bytes, torch.device("meta"))
    assert given.shape == (num_bytes,)
    taken = given.untyped_storage().nbytes()
    assert num_bytes <= taken < num_bytes + max(num_bytes / 8, 512)


def test_batches_of_about_one_size_take_the_same_memory():
    sizes = range(150_000_000, 158_000_000, 100_000)
    taken = {
        empty_rounded_up(n, torch.device("meta")).untyped_storage().nbytes()
        for n in sizes
    }
    assert len(taken) <= 2
