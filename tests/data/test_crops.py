"""Crop plans against torchvision's own on the same draws."""

import math

import numpy as np
import pytest
import torch
from PIL import Image

from t2t.data.crops import CenterCrop, RandomCrop, apply_crop, stack_images
from t2t.data.rng import CounterRng
from t2t.ops.crop_resize import Filter
from t2t.ops.ragged import Ragged


def draws_for(num: int, step: int = 0) -> CounterRng:
    return CounterRng.of(0, step, torch.arange(num))


def one_box(
    crop: RandomCrop, height: int, width: int, numbers: tuple[list[float], ...]
) -> list[int]:
    """The published procedure, one image at a time, on given uniform numbers."""
    areas, shapes, (place_top, place_left) = numbers
    low, high = math.log(crop.ratio[0]), math.log(crop.ratio[1])
    for share, shape in zip(areas, shapes, strict=True):
        area = height * width
        area *= crop.scale[0] + share * (crop.scale[1] - crop.scale[0])
        ratio = math.exp(low + shape * (high - low))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            top = int(place_top * (height - h + 1))
            left = int(place_left * (width - w + 1))
            return [left, top, left + w, top + h]
    w, h = width, height
    if width / height < crop.ratio[0]:
        h = round(w / crop.ratio[0])
    elif width / height > crop.ratio[1]:
        w = round(h * crop.ratio[1])
    top, left = (height - h) // 2, (width - w) // 2
    return [left, top, left + w, top + h]


@pytest.mark.parametrize("scale", [(0.08, 1.0), (0.9, 1.0)])
def test_random_boxes_follow_the_published_procedure(
    scale: tuple[float, float],
) -> None:
    heights = torch.tensor([375, 500, 40, 1000, 31, 1, 480])
    widths = torch.tensor([500, 375, 900, 30, 31, 70, 640])
    crop = RandomCrop(size=(32, 32), scale=scale)
    for step in range(20):
        rng = draws_for(7, step)
        plan = crop.plan(heights, widths, rng)
        columns = [
            rng.uniform("crop.area", 10).double().tolist(),
            rng.uniform("crop.shape", 10).double().tolist(),
            rng.uniform("crop.place", 2).double().tolist(),
        ]
        expected = [
            one_box(crop, h, w, tuple(column[i] for column in columns))
            for i, (h, w) in enumerate(
                zip(heights.tolist(), widths.tolist(), strict=True)
            )
        ]
        assert plan.boxes.tolist() == expected


def test_images_of_one_size_make_a_batch_however_they_lie() -> None:
    planar = torch.arange(36, dtype=torch.uint8).view(2, 3, 2, 3)
    interleaved = planar.contiguous(memory_format=torch.channels_last)
    for images in (
        planar,
        interleaved,
        [planar[0], interleaved[1]],
        [interleaved[0], planar[1]],
    ):
        assert torch.equal(stack_images(Ragged.from_images(list(images))), planar)


def test_random_crops_use_the_filters_asked_for() -> None:
    sides = torch.full((400,), 64)
    plan = RandomCrop(size=(32, 32)).plan(sides, sides, draws_for(400))
    assert 160 < int(plan.filters.sum()) < 240
    plain = RandomCrop(size=(32, 32), interpolation="bilinear")
    plan = plain.plan(sides, sides, draws_for(400))
    assert (plan.filters == int(Filter.BILINEAR)).all()


def test_a_samples_box_does_not_depend_on_its_batch() -> None:
    heights, widths = torch.tensor([50, 60, 70]), torch.tensor([90, 80, 70])
    crop = RandomCrop(size=(32, 32))
    together = crop.plan(heights, widths, draws_for(3))
    alone = crop.plan(heights[2:], widths[2:], CounterRng.of(0, 0, torch.tensor([2])))
    assert together.boxes[2].tolist() == alone.boxes[0].tolist()


@pytest.mark.parametrize(("height", "width"), [(96, 71), (50, 120), (69, 64), (64, 69)])
@pytest.mark.parametrize("fraction", [0.9, 1.0])
def test_centre_crop_is_resize_and_crop_in_one(
    height: int, width: int, fraction: float
) -> None:
    rows, columns = torch.meshgrid(
        torch.arange(height), torch.arange(width), indexing="ij"
    )
    image = (128 + 90 * torch.sin(rows / 6) * torch.cos(columns / 5)).to(torch.uint8)
    crop = CenterCrop(size=(36, 36), fraction=fraction)
    output = apply_crop(crop, Ragged.from_images([image[None]]), draws_for(1))

    short = math.floor(36 / fraction)
    scale = (
        (short, int(short * height / width))
        if width <= height
        else (int(short * width / height), short)
    )
    resized = Image.fromarray(image.numpy()).resize(scale, Image.Resampling.BICUBIC)
    left, top = round((scale[0] - 36) / 2), round((scale[1] - 36) / 2)
    expected = np.array(resized.crop((left, top, left + 36, top + 36))).astype(int)
    assert np.abs(output[0, 0].numpy().astype(int) - expected).max() <= 1


def test_centre_crop_of_a_wide_target_stays_inside() -> None:
    heights, widths = torch.tensor([40, 200, 64]), torch.tensor([300, 41, 64])
    crop = CenterCrop(size=(24, 48), fraction=0.9)
    boxes = crop.plan(heights, widths, draws_for(3)).boxes
    assert (boxes[:, :2] >= 0).all()
    assert (boxes[:, 2] <= widths + 1e-2).all()
    assert (boxes[:, 3] <= heights + 1e-2).all()
