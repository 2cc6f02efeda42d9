"""Near-duplicates: copies are found, images that only look alike are not."""

import io

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from t2t.analysis.near_duplicates import colour_features, find_near_duplicates


def scenes(num: int, seed: int = 0) -> Tensor:
    """Coloured clouds of 32 × 32 pixels, each unlike the others."""
    generator = torch.Generator().manual_seed(seed)
    small = torch.rand(num, 3, 5, 5, generator=generator)
    images = F.interpolate(small, (32, 32), mode="bicubic").clamp(0, 1)
    return (255 * images).round()


def altered(images: Tensor, how: str) -> Tensor:
    """The images as another program may have written them."""
    found = []
    for image in images:
        picture = Image.fromarray(image.byte().permute(1, 2, 0).numpy())
        if how == "jpeg":
            file = io.BytesIO()
            picture.save(file, "JPEG", quality=40)
            picture = Image.open(file)
        elif how == "half":
            picture = picture.resize((16, 16)).resize((32, 32))
        elif how == "brighter":
            picture = picture.point(lambda value: 0.8 * value + 40)
        found.append(torch.from_numpy(np.array(picture)).permute(2, 0, 1).float())
    return torch.stack(found)


@pytest.mark.parametrize("how", ["exact", "jpeg", "half", "brighter"])
def test_copies_are_found_and_no_others(how: str) -> None:
    train, val = scenes(300, 1), scenes(50, 2)
    copies = altered(train[100:120], how)
    first = colour_features(torch.cat([val, copies]) / 255)
    pairs = find_near_duplicates(first, colour_features(train / 255))
    assert sorted((pair.first, pair.second) for pair in pairs) == [
        (50 + number, 100 + number) for number in range(20)
    ]
    assert [pair.distance for pair in pairs] == sorted(p.distance for p in pairs)


def test_images_that_all_look_alike_are_no_copies() -> None:
    generator = torch.Generator().manual_seed(0)
    product = scenes(1) / 255
    noise = 0.05 * torch.rand(200, 3, 32, 32, generator=generator)
    colours = colour_features(product + noise)
    assert find_near_duplicates(colours[:50], colours[50:]) == []
    copied = torch.cat([colours[:50], colours[60:61]])
    pairs = find_near_duplicates(copied, colours[50:])
    assert [each[:2] for each in pairs] == [(50, 10)]


def test_every_one_of_many_copies_counts() -> None:
    colours = colour_features(scenes(40) / 255)
    train = torch.cat([colours, *(9 * [colours[:1]])])
    found = find_near_duplicates(colours[:1], train)
    assert sorted(pair.second for pair in found) == [0, *range(40, 49)]
    # With more copies than neighbors, there is nothing else to compare with.
    many = find_near_duplicates(colours[:1], torch.cat([train, *(9 * [colours[:1]])]))
    assert len(many) == 10


def test_within_one_set_each_pair_is_listed_once() -> None:
    colours = colour_features(scenes(60) / 255)
    again = torch.cat([colours, colours[7:9]]).half()
    assert [each[:2] for each in find_near_duplicates(again)] == [(7, 60), (8, 61)]


def test_images_of_one_colour_are_not_compared() -> None:
    flat = torch.tensor([0.1, 0.5, 0.9])[:, None, None, None].expand(-1, 3, 8, 8)
    assert find_near_duplicates(colour_features(flat), colour_features(flat)) == []


def test_few_images_are_no_error() -> None:
    colours = colour_features(scenes(2) / 255)
    assert [p[:2] for p in find_near_duplicates(colours, colours[:1])] == [(0, 0)]
    assert find_near_duplicates(colours[:1]) == []
