"""Crops of images of different sizes, resized into one batch with PIL's filters."""

import threading
from enum import IntEnum

import numpy as np
import torch
from jaxtyping import Float, Int32, Int64
from torch import Tensor

from t2t.ops.availability import HAS_TRITON
from t2t.ops.pillow_resize import resize_box
from t2t.ops.ragged import Ragged, empty_rounded_up
from t2t.shapes import Pixels

# Lines per program of a kernel, and its warps: all lines share the filter's weights,
# which take longer to compute than to use.
_LINES = 8
_NUM_WARPS = 4


class Filter(IntEnum):
    """PIL's antialiased filters; the value is half the reach minus one."""

    BILINEAR = 0
    BICUBIC = 1


def crop_resize(
    ragged: Ragged,
    boxes: Float[Tensor, "batch 4"],
    size: tuple[int, int],
    filters: Int64[Tensor, " batch"] | None = None,
) -> Pixels:
    """Resizes each image's box (left, top, right, bottom) to `size` (height, width).

    As PIL's `resize(size, filter, box)`: the filter widens with the shrink factor, may
    reach outside the box but not outside the image, and each of the two passes, columns
    first, rounds to whole levels. Without `filters` it is bicubic. All arguments but
    the pixels are on the host.
    """
    if filters is None:
        filters = torch.full((len(ragged),), int(Filter.BICUBIC))
    _check_boxes(ragged, boxes)
    if ragged.pixels.is_cuda and HAS_TRITON:
        return crop_resize_triton(ragged, boxes, size, filters)
    if ragged.pixels.device.type == "cpu":
        return crop_resize_pillow(ragged, boxes, size, filters)
    return crop_resize_reference(ragged, boxes, size, filters)


def _check_boxes(ragged: Ragged, boxes: Float[Tensor, "batch 4"]) -> None:
    """Refuses boxes that are empty or reach outside their image."""
    left, top, right, bottom = boxes.unbind(1)
    fits = (left >= 0) & (top >= 0) & (left < right) & (top < bottom)
    # Boxes scaled back from a resized image may pass the border by a rounding error.
    fits &= (right <= ragged.widths + 1e-2) & (bottom <= ragged.heights + 1e-2)
    if not bool(fits.all()):
        first = int((~fits).nonzero()[0, 0])
        raise ValueError(
            f"Box {boxes[first].tolist()} (left, top, right, bottom) is empty or not in"
            f" its image of width {ragged.widths[first]}, height"
            f" {ragged.heights[first]}."
        )


def crop_resize_reference(
    ragged: Ragged,
    boxes: Float[Tensor, "batch 4"],
    size: tuple[int, int],
    filters: Int64[Tensor, " batch"],
) -> Pixels:
    """The reference: two products with matrices of weights per image."""
    device = ragged.pixels.device
    output = torch.empty(
        (len(ragged), ragged.channels, *size), dtype=torch.uint8, device=device
    )
    for index, (left, top, right, bottom) in enumerate(boxes.tolist()):
        image = ragged.image(index)
        kind = Filter(int(filters[index]))
        rows, by_row = _weights(top, bottom, size[0], image.shape[1], kind)
        columns, by_column = _weights(left, right, size[1], image.shape[2], kind)
        region = image[:, rows, columns].float()
        narrowed = _grey_levels(region @ by_column.to(device).T)
        output[index] = _grey_levels(by_row.to(device) @ narrowed)
    return output


def _grey_levels(values: Tensor) -> Tensor:
    return (values + 0.5).floor_().clamp_(0, 255)


def _reach(scale: Tensor, filters: Tensor) -> tuple[Tensor, Tensor]:
    """The stretch of the filter, and its reach each way in source pixels."""
    stretch = scale.clamp(min=1)
    return stretch, stretch * (filters + 1)


def _weights(
    start: float, stop: float, num_out: int, num_in: int, kind: Filter
) -> tuple[slice, Float[Tensor, "output input"]]:
    """The source positions of a filter, and each output's weights of them."""
    scale = torch.tensor((stop - start) / num_out, dtype=torch.float64)
    stretch, reach = _reach(scale, torch.tensor(int(kind)))
    centers = start + (torch.arange(num_out, dtype=torch.float64) + 0.5) * scale
    low = (centers - reach + 0.5).floor().clamp(min=0)
    high = (centers + reach + 0.5).floor().clamp(max=num_in)
    first, last = int(low[0]), int(high[-1])
    positions = torch.arange(first, last, dtype=torch.float64)
    distance = (positions + 0.5 - centers[:, None]).abs() / stretch
    if kind is Filter.BILINEAR:
        weights = (1 - distance).clamp(min=0)
    else:
        near = (1.5 * distance - 2.5) * distance**2 + 1
        far = ((-0.5 * distance + 2.5) * distance - 4) * distance + 2
        weights = torch.where(distance < 1, near, far * (distance < 2))
    weights *= (positions >= low[:, None]) & (positions < high[:, None])
    weights /= weights.sum(1, keepdim=True)
    return slice(first, last), weights.float()


def crop_resize_pillow(
    ragged: Ragged,
    boxes: Float[Tensor, "batch 4"],
    size: tuple[int, int],
    filters: Int64[Tensor, " batch"],
) -> Pixels:
    """The fast path of a CPU: Pillow, which releases the GIL."""
    output = np.empty((len(ragged), ragged.channels, *size), dtype=np.uint8)
    kinds = filters.tolist()
    for index, box in enumerate(boxes.tolist()):
        pixels = ragged.image(index).numpy()
        output[index] = resize_box(pixels, box, size, bicubic=bool(kinds[index]))
    return torch.from_numpy(output)


def _table(
    ragged: Ragged,
    boxes: Float[Tensor, "batch 4"],
    height: int,
    filters: Int64[Tensor, " batch"],
) -> tuple[Int64[Tensor, "batch 9"], Int32[Tensor, " programs"]]:
    """The kernels' data of each sample, and the sample of each program."""
    _, reach = _reach((boxes[:, 3] - boxes[:, 1]) / height, filters)
    # One more row on each side than the window: the kernels round in float32.
    first_row = (boxes[:, 1] - reach - 1).floor().clamp(min=0).long()
    last_row = torch.minimum((boxes[:, 3] + reach + 2).long(), ragged.heights)
    num_rows = last_row - first_row
    num_programs = -(-num_rows * ragged.channels // _LINES)
    columns = [
        ragged.offsets,
        ragged.heights,
        ragged.widths,
        torch.cumsum(num_rows, 0) - num_rows,
        first_row,
        num_rows,
        filters.long(),
        ragged.interleaved.long(),
        torch.cumsum(num_programs, 0) - num_programs,
    ]
    samples = torch.arange(len(ragged), dtype=torch.int32)
    return torch.stack(columns, dim=1), samples.repeat_interleave(num_programs)


# Two threads must not compile one kernel at the same time.
_LAUNCH = threading.Lock()


def crop_resize_triton(
    ragged: Ragged,
    boxes: Float[Tensor, "batch 4"],
    size: tuple[int, int],
    filters: Int64[Tensor, " batch"],
) -> Pixels:
    """The fast path: two kernels over the ragged buffer."""
    import triton

    from t2t.ops.kernels.crop_resize import narrow_columns, shorten_rows

    device = ragged.pixels.device
    height, width = size
    batch, channels = len(ragged), ragged.channels
    boxes = boxes.float()
    table, owners = _table(ragged, boxes, height, filters)
    narrowed = empty_rounded_up(int(table[:, 5].sum()) * channels * width, device)
    if device.type == "cuda":
        table, owners, boxes = (
            each.pin_memory().to(device, non_blocking=True)
            for each in (table, owners, boxes)
        )
    output = torch.empty(
        (batch, channels, height, width), dtype=torch.uint8, device=device
    )
    columns = min(triton.next_power_of_2(width), 256)
    num_blocks = triton.cdiv(width, columns)
    with _LAUNCH, torch.cuda.device(device if device.type == "cuda" else -1):
        narrow_columns[(len(owners), num_blocks)](
            ragged.pixels,
            narrowed,
            table,
            owners,
            boxes,
            width,
            channels,
            LINES=_LINES,
            COLUMNS=columns,
            num_warps=_NUM_WARPS,
        )
        grid = (triton.cdiv(channels * height, _LINES), batch, num_blocks)
        shorten_rows[grid](
            narrowed,
            output,
            table,
            boxes,
            height,
            width,
            channels,
            LINES=_LINES,
            COLUMNS=columns,
            num_warps=_NUM_WARPS,
        )
    return output
