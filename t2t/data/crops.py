"""Crops: the box of each image and how it is resized, drawn on the host."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from t2t.data.center_crop import center_boxes, min_side_of
from t2t.data.rng import CounterRng
from t2t.errors import UserError
from t2t.ops.crop_resize import Filter, crop_resize
from t2t.ops.ragged import Ragged
from t2t.shapes import Pixels

Interpolation = Literal["random", "bilinear", "bicubic"]
Sides = Int64[Tensor, " batch"]

_NUM_TRIES = 10
SIDE_STEP = 8


class CropPlan(NamedTuple):
    """The box and the filter that `crop_resize` takes for each image."""

    boxes: Float[Tensor, "batch 4"]
    filters: Int64[Tensor, " batch"]


class Crop(Protocol):
    """Plans the crops of a batch from the sizes of its images."""

    @property
    def size(self) -> tuple[int, int]: ...

    @property
    def is_random(self) -> bool: ...

    @property
    def keeps_its_size(self) -> bool:
        """Whether images of the crop's own size stay as they are."""
        ...

    def plan(self, heights: Sides, widths: Sides, rng: CounterRng) -> CropPlan: ...


def make_views(
    images: Ragged,
    crops: Sequence[Crop],
    seed: int,
    step: int,
    keys: Int64[Tensor, " batch"],
) -> tuple[Pixels, ...]:
    """The images once per crop; view k draws from `rng.for_view(k)`.

    Without crops, one view: the images as they are, which must share one size.
    """
    if not crops:
        check_one_size(images)
        return (stack_images(images),)
    rng = None
    views: list[Pixels] = []
    for number, crop in enumerate(crops):
        first = crops.index(crop)
        if first < number and not crop.is_random:
            views.append(views[first])
        elif crop.keeps_its_size and _have_size(images, crop.size):
            views.append(stack_images(images))
        else:
            rng = rng or CounterRng.of(seed, step, keys)
            views.append(apply_crop(crop, images, rng.for_view(number)))
    return tuple(views)


def apply_crop(crop: Crop, images: Ragged, rng: CounterRng) -> Pixels:
    """Every image cropped and resized, on the device of its pixels."""
    plan = crop.plan(images.heights, images.widths, rng)
    return crop_resize(images, plan.boxes, crop.size, plan.filters)


def min_side_for(*crops: Crop) -> int | None:
    """The `min_side` of `decode` for these crops; None: decode at full size.

    More than twice what a crop of the whole image needs, and the same for training and
    for evaluation with a crop fraction of 0.9 or more.
    """
    return max((_min_side(crop) for crop in crops), default=None)


def _min_side(crop: Crop) -> int:
    fraction = crop.fraction if isinstance(crop, CenterCrop) else 1.0
    return min_side_of(crop.size, fraction)


def _have_size(images: Ragged, size: tuple[int, int]) -> bool:
    height, width = size
    return bool(((images.heights == height) & (images.widths == width)).all())


def check_one_size(images: Ragged) -> None:
    """Refuses images of different sizes."""
    heights, widths = images.heights, images.widths
    others = ((heights != heights[0]) | (widths != widths[0])).nonzero()
    if len(others):
        other = int(others[0, 0])
        raise UserError(
            f"Images have different sizes, such as {heights[0]} by {widths[0]} and"
            f" {heights[other]} by {widths[other]}: choose a size to crop them to."
        )


def stack_images(images: Ragged) -> Pixels:
    """A copy of images that share one size, as one tensor."""
    height, width = int(images.heights[0]), int(images.widths[0])
    num_bytes = images.channels * height * width
    rows = images.offsets // num_bytes
    is_interleaved = bool(images.interleaved[0])
    is_regular = (images.interleaved == is_interleaved) & (
        rows * num_bytes == images.offsets
    )
    if not is_regular.all():
        return torch.stack([images.image(index) for index in range(len(images))])
    # The buffer is a table with an image in each of these rows, whatever else it holds.
    num_rows = len(images.pixels) // num_bytes
    table = images.pixels[: num_rows * num_bytes].view(num_rows, num_bytes)
    if table.is_cuda:
        rows = rows.pin_memory().to(table.device, non_blocking=True)
    chosen = table.index_select(0, rows)
    if is_interleaved:
        interleaved = chosen.view(-1, height, width, images.channels)
        return interleaved.permute(0, 3, 1, 2).contiguous()
    return chosen.view(-1, images.channels, height, width)


def shrink(pixels: Pixels, scale: float) -> Pixels:
    """Smaller images, whose sides are multiples of eight pixels."""
    size = [
        min(max(round(side * scale / SIDE_STEP), 1) * SIDE_STEP, side)
        for side in pixels.shape[-2:]
    ]
    smaller = F.interpolate(pixels.float(), size, mode="bilinear", antialias=True)
    return smaller.round().clamp(0, 255).to(pixels.dtype)


@dataclass(frozen=True, kw_only=True)
class RandomCrop:
    """A box of random area and shape anywhere in the image, as for Inception.

    `scale` bounds the box's share of the image's area, `ratio` its width over height.
    If ten tries give no box that fits, it is the largest central one within `ratio`.
    """

    size: tuple[int, int]
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    interpolation: Interpolation = "random"

    is_random: ClassVar = True
    keeps_its_size: ClassVar = False

    def plan(self, heights: Sides, widths: Sides, rng: CounterRng) -> CropPlan:
        box_heights, box_widths, fits = self._tries(heights, widths, rng)
        found = fits.any(1)
        first = fits.int().argmax(1, keepdim=True)
        height = box_heights.gather(1, first)[:, 0]
        width = box_widths.gather(1, first)[:, 0]
        position = rng.uniform("crop.place", 2).double()
        top = (position[:, 0] * (heights - height + 1)).floor()
        left = (position[:, 1] * (widths - width + 1)).floor()

        central_height, central_width = self._central(heights, widths)
        height = torch.where(found, height, central_height)
        width = torch.where(found, width, central_width)
        top = torch.where(found, top, ((heights - height) / 2).floor())
        left = torch.where(found, left, ((widths - width) / 2).floor())
        boxes = torch.stack([left, top, left + width, top + height], 1).float()
        return CropPlan(boxes, _filters(self.interpolation, rng))

    def _tries(
        self, heights: Sides, widths: Sides, rng: CounterRng
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Height and width of each try, and whether it fits into the image."""
        low, high = self.scale
        share = rng.uniform("crop.area", _NUM_TRIES).double() * (high - low) + low
        low, high = (math.log(ratio) for ratio in self.ratio)
        shape = rng.uniform("crop.shape", _NUM_TRIES).double() * (high - low) + low
        area = share * (heights * widths)[:, None]
        box_widths = (area * shape.exp()).sqrt().round()
        box_heights = (area / shape.exp()).sqrt().round()
        fits = (box_widths >= 1) & (box_heights >= 1)
        fits &= (box_widths <= widths[:, None]) & (box_heights <= heights[:, None])
        return box_heights, box_widths, fits

    def _central(self, heights: Sides, widths: Sides) -> tuple[Tensor, Tensor]:
        tall = heights.double()
        wide = widths.double()
        too_narrow = wide / tall < min(self.ratio)
        too_wide = wide / tall > max(self.ratio)
        height = torch.where(too_narrow, (wide / min(self.ratio)).round(), tall)
        width = torch.where(too_wide, (tall * max(self.ratio)).round(), wide)
        return height.clamp(min=1), width.clamp(min=1)


@dataclass(frozen=True, kw_only=True)
class CenterCrop:
    """The central box, as if resized to size / fraction and cropped to size."""

    size: tuple[int, int]
    fraction: float = 0.9

    is_random: ClassVar = False

    @property
    def keeps_its_size(self) -> bool:
        return all(math.floor(side / self.fraction) == side for side in self.size)

    def plan(self, heights: Sides, widths: Sides, rng: CounterRng) -> CropPlan:
        boxes = center_boxes(heights.numpy(), widths.numpy(), self.size, self.fraction)
        return CropPlan(torch.from_numpy(boxes), _filters("bicubic", rng))


def _filters(interpolation: Interpolation, rng: CounterRng) -> Int64[Tensor, " batch"]:
    if interpolation == "random":
        return rng.bernoulli("crop.filter", 0.5)[:, 0].long()
    kind = Filter.BICUBIC if interpolation == "bicubic" else Filter.BILINEAR
    return torch.full((len(rng.keys),), int(kind))
