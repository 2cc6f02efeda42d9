"""Crop and resize against PIL, and the fast path against the plain one."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from t2t.ops.availability import HAS_TRITON
from t2t.ops.crop_resize import (
    Filter,
    crop_resize,
    crop_resize_pillow,
    crop_resize_reference,
)
from t2t.ops.ragged import Ragged

PIL_FILTER = {
    Filter.BILINEAR: Image.Resampling.BILINEAR,
    Filter.BICUBIC: Image.Resampling.BICUBIC,
}


def photographs(sizes: list[tuple[int, int]], channels: int = 3) -> list[Tensor]:
    """Edges, gradients and noise: black beside white makes bicubic overshoot."""
    generator = torch.Generator().manual_seed(0)
    images = []
    for height, width in sizes:
        image = torch.randint(0, 256, (channels, height, width), generator=generator)
        image[:, :, : width // 2] = torch.arange(width // 2) * 255 // width
        image[:, height // 4 : height // 2] = 255
        image[:, height // 2 : 3 * height // 4] = 0
        images.append(image.to(torch.uint8))
    return images


def interleaved(image: Tensor) -> Tensor:
    return image.permute(1, 2, 0).contiguous().permute(2, 0, 1)


def resized_by_pil(
    image: Tensor, box: list[float], size: tuple[int, int], kind: Filter
) -> Tensor:
    """PIL's two passes, columns first: Pillow 13 starts with the cheaper one."""
    planes = []
    left, top, right, bottom = box
    for plane in image.numpy():
        picture = Image.fromarray(plane)
        columns = (left, 0, right, picture.height)
        picture = picture.resize((size[1], picture.height), PIL_FILTER[kind], columns)
        picture = picture.resize(
            size[::-1], PIL_FILTER[kind], (0, top, size[1], bottom)
        )
        planes.append(np.asarray(picture))
    return torch.from_numpy(np.stack(planes))


SIZES = [(50, 40), (33, 91), (120, 64), (17, 23), (16, 16), (200, 31)]
BOXES = [
    [3, 5, 37, 44],
    [0, 0, 91, 33],
    [10.5, 20.25, 60.75, 110],
    [2, 2, 12, 9],
    [0, 0, 16, 16],
    [30, 0, 31, 200],
]


@pytest.mark.parametrize("resize", [crop_resize_reference, crop_resize_pillow])
@pytest.mark.parametrize("kind", list(Filter))
@pytest.mark.parametrize("size", [(16, 16), (24, 9), (64, 70)])
@pytest.mark.parametrize("channels", [1, 3])
def test_agrees_with_pil(
    resize: Callable[..., Tensor], kind: Filter, size: tuple[int, int], channels: int
) -> None:
    images = photographs(SIZES, channels)
    output = resize(
        Ragged.from_images(images),
        torch.tensor(BOXES),
        size,
        torch.full((6,), int(kind)),
    )
    assert output.shape == (6, channels, *size)
    for index, image in enumerate(images):
        expected = resized_by_pil(image, BOXES[index], size, kind)
        difference = (output[index].int() - expected.int()).abs()
        assert difference.max() <= 1
        # PIL's fixed-point weights round the ties of flat regions either way.
        assert (difference > 0).float().mean() < 0.12


@pytest.mark.parametrize("kind", list(Filter))
def test_agrees_with_pil_in_one_call(kind: Filter) -> None:
    rows, columns = torch.meshgrid(torch.arange(90), torch.arange(70), indexing="ij")
    image = (127 + 100 * torch.sin(rows / 9) * torch.cos(columns / 7)).to(torch.uint8)
    box = [4.0, 3, 66, 80]
    ragged = Ragged.from_images([image[None]])
    filters = torch.tensor([int(kind)])
    output = crop_resize(ragged, torch.tensor([box]), (32, 24), filters)
    picture = Image.fromarray(image.numpy()).resize((24, 32), PIL_FILTER[kind], box)
    difference = output[0, 0].int() - torch.from_numpy(np.array(picture)).int()
    assert difference.abs().max() <= 1


def test_whole_image_at_its_own_size_is_untouched() -> None:
    images = photographs([(20, 30), (20, 30)])
    boxes = torch.tensor([[0.0, 0, 30, 20], [0, 0, 30, 20]])
    output = crop_resize(Ragged.from_images(images), boxes, (20, 30))
    assert torch.equal(output, torch.stack(images))


def test_selecting_shares_pixels_and_reorders() -> None:
    ragged = Ragged.from_images(photographs(SIZES))
    chosen = ragged.select(torch.tensor([4, 0, 4]))
    assert chosen.pixels is ragged.pixels
    assert torch.equal(chosen.image(1), ragged.image(0))
    assert torch.equal(chosen.image(2), ragged.image(4))


@pytest.mark.parametrize("channels", [2, 3, 4, 5])
def test_interleaved_images_keep_their_memory_and_their_meaning(channels: int) -> None:
    images = photographs(SIZES, channels)
    mixed = [interleaved(image) if i % 2 else image for i, image in enumerate(images)]
    ragged = Ragged.from_images(mixed)
    assert ragged.interleaved.tolist() == [False, True] * 3
    assert torch.equal(ragged.image(1), images[1])
    boxes = torch.tensor(BOXES)
    filters = torch.arange(6) % 2
    for resize in (crop_resize_reference, crop_resize_pillow):
        expected = resize(Ragged.from_images(images), boxes, (16, 16), filters)
        assert torch.equal(resize(ragged, boxes, (16, 16), filters), expected)


def test_filters_are_chosen_per_sample() -> None:
    ragged = Ragged.from_images(photographs([(40, 40)])).select(torch.tensor([0, 0]))
    boxes = torch.tensor([[1.0, 2, 38, 39]]).expand(2, 4)
    both = crop_resize(ragged, boxes, (16, 16), torch.tensor([0, 1]))
    for kind in Filter:
        alone = crop_resize(ragged, boxes, (16, 16), torch.full((2,), int(kind)))
        assert torch.equal(both[kind], alone[0])
    assert not torch.equal(both[0], both[1])


@pytest.mark.parametrize(
    "box", [[0.0, 0, 41, 40], [5, 5, 5, 9], [-1, 0, 9, 9], [0, 0, 9, 42]]
)
def test_a_box_that_leaves_its_image_is_refused(box: list[float]) -> None:
    ragged = Ragged.from_images(photographs([(40, 40)]))
    with pytest.raises(ValueError, match="width 40, height 40"):
        crop_resize(ragged, torch.tensor([box]), (8, 8))


def test_a_box_may_pass_the_border_by_a_rounding_error() -> None:
    images = photographs([(20, 30)])
    box = torch.tensor([[0.0, 0, 30.001, 20.001]])
    output = crop_resize(Ragged.from_images(images), box, (20, 30))
    assert torch.equal(output[0], images[0])


def test_sizes_that_do_not_add_up_are_refused() -> None:
    size = torch.tensor([3])
    pixels = torch.zeros(20, dtype=torch.uint8)
    with pytest.raises(ValueError, match=r"20 pixels, .* 27"):
        Ragged.from_parts(pixels, size, size, size == 0, 3)


INTERPRETED = """
import sys
import torch
from t2t.ops.crop_resize import crop_resize_reference, crop_resize_triton
from t2t.ops.ragged import Ragged
images, boxes, filters = torch.load(sys.argv[1])
arguments = Ragged.from_images(images), boxes, (5, 9), filters
plain, fast = crop_resize_reference(*arguments), crop_resize_triton(*arguments)
difference = (plain.int() - fast.int()).abs()
assert difference.max() <= 1, difference.max()
assert (difference > 0).float().mean() < 0.01
print("agree")
"""


@pytest.mark.skipif(not HAS_TRITON, reason="Triton is not installed")
@pytest.mark.usefixtures("interpreter")
def test_kernels_agree_with_the_plain_path_in_the_interpreter(tmp_path: Path) -> None:
    images = photographs([(12, 9), (7, 21), (4, 4)], channels=2)
    images[0] = interleaved(images[0])
    boxes = torch.tensor([[1.0, 2, 8, 11], [0.5, 0, 21, 6.5], [1, 1, 3, 2]])
    case = images, boxes, torch.tensor([0, 1, 1])
    torch.save(case, tmp_path / "case.pt")
    # The interpreter is chosen when Triton is imported, hence a process of its own.
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    command = [sys.executable, "-W", "error", "-c", INTERPRETED, tmp_path / "case.pt"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == "agree", done.stderr


@pytest.mark.cuda
@pytest.mark.parametrize("size", [(224, 224), (64, 300)])
def test_kernels_agree_with_the_plain_path_on_the_gpu(size: tuple[int, int]) -> None:
    images = photographs([(375, 500), (1200, 801), (64, 64), (90, 333)])
    images[0] = interleaved(images[0])
    boxes = torch.tensor(
        [[10.0, 20, 480, 360], [0, 0, 801, 1200], [5, 5, 20, 60], [0.5, 1.5, 300, 90]]
    )
    filters = torch.tensor([0, 1, 1, 0])
    on_cpu = Ragged.from_images(images)
    plain = crop_resize_reference(on_cpu, boxes, size, filters)
    on_gpu = Ragged.from_images([image.cuda() for image in images])
    fast = crop_resize(on_gpu, boxes, size, filters).cpu()
    difference = (plain.int() - fast.int()).abs()
    assert difference.max() <= 1
    assert (difference > 0).float().mean() < 0.01
