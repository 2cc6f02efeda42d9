"""Where the pixels of a sample come from: flips, padded crops and affine maps."""

import math
from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from t2t.errors import UserError
from t2t.shapes import Pixels

Values = Float[Tensor, " batch"]
# (a, b, c, d, e, f) of x = a·X + b·Y + c, y = d·X + e·Y + f: the place (x, y) in the
# input that the place (X, Y) of the output shows, both in pixels from the corner.
Matrix = Float[Tensor, "batch 6"]
Padding = Literal["zero", "reflect"]


def flip(images: Pixels, chosen: Bool[Tensor, " batch"]) -> Pixels:
    """The chosen samples mirrored left to right."""
    return torch.where(chosen[:, None, None, None], images.flip(3), images)


def take_pixels(
    images: Pixels,
    rows: Int64[Tensor, " batch #height #width"],
    columns: Int64[Tensor, " batch #height #width"],
) -> Pixels:
    """The pixels at these places, which must lie in the image, for all channels."""
    batch, channels, height, width = images.shape
    places = (rows * width + columns).flatten(1)[:, None].expand(-1, channels, -1)
    return images.flatten(2).gather(2, places).view(batch, channels, height, width)


def padded_crop(
    images: Pixels,
    top: Int64[Tensor, " batch"],
    left: Int64[Tensor, " batch"],
    padding: int,
    fill: Padding = "zero",
) -> Pixels:
    """The window at (top, left), 0 to 2 · padding, of images padded on all sides."""
    height, width = images.shape[2:]
    if fill == "reflect" and padding >= min(height, width):
        raise UserError(
            f"Reflecting {padding} pixels needs larger images than {height}x{width}: "
            "take less crop padding, or fill with zero."
        )
    row = torch.arange(height, device=images.device) + (top[:, None] - padding)
    column = torch.arange(width, device=images.device) + (left[:, None] - padding)
    rows, columns = row[:, :, None], column[:, None, :]
    if fill == "reflect":
        rows = (height - 1) - ((height - 1) - rows.abs()).abs()
        columns = (width - 1) - ((width - 1) - columns.abs()).abs()
        return take_pixels(images, rows, columns)
    inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    pixels = take_pixels(images, rows.clamp(0, height - 1), columns.clamp(0, width - 1))
    return torch.where(inside[:, None], pixels, 0)


def _matrix(values: Values, *coefficients: Values | float) -> Matrix:
    """One row of six per sample; numbers stand for all samples."""
    columns = [torch.zeros_like(values) + each for each in coefficients]
    return torch.stack(columns, 1)


def shear_x_matrix(factor: Values, height: int, width: int) -> Matrix:
    """Rows move left in proportion to their distance from the top."""
    return _matrix(factor, 1.0, factor, 0.0, 0.0, 1.0, 0.0)


def shear_y_matrix(factor: Values, height: int, width: int) -> Matrix:
    """Columns move up in proportion to their distance from the left."""
    return _matrix(factor, 1.0, 0.0, 0.0, factor, 1.0, 0.0)


def translate_x_matrix(share: Values, height: int, width: int) -> Matrix:
    """The image moves left by a share of its width."""
    return _matrix(share, 1.0, 0.0, share * width, 0.0, 1.0, 0.0)


def translate_y_matrix(share: Values, height: int, width: int) -> Matrix:
    """The image moves up by a share of its height."""
    return _matrix(share, 1.0, 0.0, 0.0, 0.0, 1.0, share * height)


def rotate_matrix(degrees: Values, height: int, width: int) -> Matrix:
    """The image turns counter-clockwise about its centre."""
    angle = degrees * (-math.pi / 180)
    cosine, sine = angle.cos(), angle.sin()
    x, y = width / 2, height / 2
    return _matrix(
        degrees,
        cosine,
        sine,
        x - cosine * x - sine * y,
        -sine,
        cosine,
        y + sine * x - cosine * y,
    )


def _interpolate(
    levels: Sequence[Tensor], fraction: Tensor, is_cubic: Tensor | None
) -> Tensor:
    """Between the middle levels, in PIL's order so that equal levels stay exact."""
    if is_cubic is None:
        first, second = levels
        return first + (second - first) * fraction
    before, first, second, after = levels
    slope = second - torch.where(is_cubic, before, first)
    square = torch.where(is_cubic, 2 * (before - first) + second - after, 0)
    cube = torch.where(is_cubic, first - before + after - second, 0)
    return first + fraction * (slope + fraction * (square + fraction * cube))


def affine(
    images: Pixels,
    matrix: Matrix,
    fill: Sequence[int],
    is_cubic: Bool[Tensor, " batch"] | None = None,
) -> Pixels:
    """PIL's `Image.transform(AFFINE)` with a matrix per sample.

    Bilinear, or bicubic for the samples chosen in `is_cubic`. Outside lies the fill,
    one level per channel. Float32 places a pixel within about 1e-4 of PIL's double, so
    that a level may differ by one where PIL's truncation falls.
    """
    height, width = images.shape[2:]
    column = torch.arange(width, device=images.device) + 0.5
    row = (torch.arange(height, device=images.device) + 0.5)[:, None]
    a, b, c, d, e, f = matrix[:, :, None, None].unbind(1)
    x, y = a * column + b * row + c, d * column + e * row + f
    inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
    left, top = (x - 0.5).floor(), (y - 0.5).floor()
    across, down = (x - 0.5 - left)[:, None], (y - 0.5 - top)[:, None]
    if is_cubic is not None:
        is_cubic = is_cubic[:, None, None, None]
    reach = (0, 1) if is_cubic is None else (-1, 0, 1, 2)
    columns = [(left + shift).clamp(0, width - 1).long() for shift in reach]
    rows = [(top + shift).clamp(0, height - 1).long() for shift in reach]
    levels = _interpolate(
        [
            _interpolate(
                [take_pixels(images, y, x).float() for x in columns], across, is_cubic
            )
            for y in rows
        ],
        down,
        is_cubic,
    )
    pixels = levels.clamp(0, 255).to(torch.uint8)
    return torch.where(inside[:, None], pixels, channel_values(fill, images))


def channel_values(
    values: Sequence[float], images: Tensor
) -> Float[Tensor, "channels 1 1"]:
    """One number per channel, of the images' type, on their device.

    Filled there and not copied, so that compiled code has no traffic with the host.
    """
    if len(values) != images.shape[1]:
        raise UserError(
            f"{len(values)} values per channel were given for images of "
            f"{images.shape[1]} channels: mean and std need one value per channel."
        )
    parts = [
        torch.full((1,), value, dtype=images.dtype, device=images.device)
        for value in values
    ]
    return torch.cat(parts)[:, None, None]
