"""Flips, padded crops and affine maps."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from t2t.data.augment.config import Padding
from t2t.errors import UserError
from t2t.ops import augment_triton
from t2t.shapes import Pixels

Values = Float[Tensor, " batch"]
# (a, b, c, d, e, f) of x = a·X + b·Y + c, y = d·X + e·Y + f: the output at (X, Y) shows
# the input at (x, y), both in pixels from the corner.
Matrix = Float[Tensor, "batch 6"]
# The same six of one operation; a number equals that of the identity.
Terms = tuple[
    Values | float,
    Values | float,
    Values | float,
    Values | float,
    Values | float,
    Values | float,
]


def crop_and_flip(
    images: Pixels,
    offset: Int64[Tensor, "batch 2"] | None,
    is_flipped: Bool[Tensor, " batch"] | None,
    padding: int,
    fill: Padding = "zero",
) -> Pixels:
    """A padded crop at the offset (top, left), then a flip, if they are given."""
    if not augment_triton.has_kernel(images):
        if offset is not None:
            images = padded_crop(images, offset[:, 0], offset[:, 1], padding, fill)
        return images if is_flipped is None else flip(images, is_flipped)
    none = torch.zeros(len(images), dtype=torch.int32, device=images.device)
    top = left = none
    if offset is not None:
        _check_padding(images, padding, fill)
        top, left = (offset - padding).unbind(1)
    if is_flipped is None:
        is_flipped = none > 0
    reflects = fill == "reflect"
    moved: Pixels = augment_triton.crop_and_flip(
        images, top, left, is_flipped, reflects
    )
    return moved


def flip(images: Pixels, chosen: Bool[Tensor, " batch"]) -> Pixels:
    """The chosen samples mirrored left to right."""
    return torch.where(chosen[:, None, None, None], images.flip(3), images)


def _take_pixels(
    images: Pixels,
    rows: Int64[Tensor, "batch height 1"],
    columns: Int64[Tensor, "batch 1 width"],
) -> Pixels:
    """The pixels of these rows and columns, which must be inside the image."""
    indices = (rows * images.shape[3] + columns).flatten(1)[:, None]
    flat = images.flatten(2)
    return flat.gather(2, indices.expand(-1, images.shape[1], -1)).view_as(images)


def _check_padding(images: Pixels, padding: int, fill: Padding) -> None:
    """Refuses to reflect more pixels than the image has."""
    height, width = images.shape[2:]
    if fill == "reflect" and padding >= min(height, width):
        raise UserError(
            f"Reflecting {padding} pixels needs larger images than {height}x{width}: "
            "reduce crop_padding, or set crop_fill=zero."
        )


def padded_crop(
    images: Pixels,
    top: Int64[Tensor, " batch"],
    left: Int64[Tensor, " batch"],
    padding: int,
    fill: Padding = "zero",
) -> Pixels:
    """The window at (top, left), 0 to 2 · padding, of images padded on all sides."""
    _check_padding(images, padding, fill)
    height, width = images.shape[2:]
    row = torch.arange(height, device=images.device) + (top[:, None] - padding)
    column = torch.arange(width, device=images.device) + (left[:, None] - padding)
    rows, columns = row[:, :, None], column[:, None, :]
    if fill == "reflect":
        rows = (height - 1) - ((height - 1) - rows.abs()).abs()
        columns = (width - 1) - ((width - 1) - columns.abs()).abs()
        return _take_pixels(images, rows, columns)
    inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    pixels = _take_pixels(
        images, rows.clamp(0, height - 1), columns.clamp(0, width - 1)
    )
    return torch.where(inside[:, None], pixels, 0)


def shear_x_terms(factor: Values, height: int, width: int) -> Terms:
    """Rows move left in proportion to their distance from the top."""
    return (1.0, factor, 0.0, 0.0, 1.0, 0.0)


def shear_y_terms(factor: Values, height: int, width: int) -> Terms:
    """Columns move up in proportion to their distance from the left."""
    return (1.0, 0.0, 0.0, factor, 1.0, 0.0)


def translate_x_terms(share: Values, height: int, width: int) -> Terms:
    """The image moves left by a share of its width."""
    return (1.0, 0.0, share * width, 0.0, 1.0, 0.0)


def translate_y_terms(share: Values, height: int, width: int) -> Terms:
    """The image moves up by a share of its height."""
    return (1.0, 0.0, 0.0, 0.0, 1.0, share * height)


def rotate_terms(degrees: Values, height: int, width: int) -> Terms:
    """The image turns counter-clockwise about its centre."""
    angle = degrees * (-math.pi / 180)
    cosine, sine = angle.cos(), angle.sin()
    x, y = width / 2, height / 2
    right, down = x - cosine * x - sine * y, y + sine * x - cosine * y
    return (cosine, sine, right, -sine, cosine, down)


def choose_matrix(
    choices: Sequence[tuple[Bool[Tensor, " batch"], Terms]], values: Values
) -> Matrix:
    """The matrix of each image, from the terms of the operation it drew, if any."""
    matrix = []
    for number, identity in enumerate((1.0, 0.0, 0.0, 0.0, 1.0, 0.0)):
        column = torch.full_like(values, identity)
        for chosen, terms in choices:
            term = terms[number]
            # A number is that of the identity, which the column has already.
            if isinstance(term, Tensor):
                column = torch.where(chosen, term, column)
        matrix.append(column)
    return torch.stack(matrix, 1)


def _weights(
    fraction: Tensor, is_cubic: Bool[Tensor, "batch 1 1"]
) -> tuple[Tensor, Tensor, Tensor]:
    """The weights of the neighbours at −1, 1 and 2; that at 0 has the rest of 1.

    PIL's transform uses a cubic with a = −1.
    """
    rest = 1 - fraction
    before = torch.where(is_cubic, -fraction * rest * rest, 0.0)
    after = torch.where(is_cubic, -fraction * fraction * rest, 0.0)
    cubic = fraction * (1 + rest * fraction)
    return before, torch.where(is_cubic, cubic, fraction), after


def _interpolate(levels: Sequence[Tensor], weights: Sequence[Tensor]) -> Tensor:
    """Interpolates by differences, which is exact between equal levels."""
    if len(levels) == 2:
        return levels[0] + weights[0] * (levels[1] - levels[0])
    before, first, second, after = levels
    return (
        first
        + weights[0] * (before - first)
        + weights[1] * (second - first)
        + weights[2] * (after - first)
    )


def affine(
    images: Pixels,
    matrix: Matrix,
    fill: Sequence[int],
    is_cubic: Bool[Tensor, " batch"] | None = None,
) -> Pixels:
    """PIL's `Image.transform(AFFINE)` with a matrix per sample.

    Bilinear, or bicubic for the samples in `is_cubic`. The fill, one level per channel,
    is used outside the image. Float32 coordinates are within about 1e-4 of PIL's
    double, so a level may differ by one after truncation.
    """
    channels, height, width = images.shape[1:]
    pixel = torch.arange(height * width, device=images.device)
    column, row = pixel % width + 0.5, pixel // width + 0.5
    a, b, c, d, e, f = matrix[:, :, None, None].unbind(1)
    x, y = a * column + b * row + c, d * column + e * row + f
    inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
    left, top = (x - 0.5).floor(), (y - 0.5).floor()
    across, down = x - 0.5 - left, y - 0.5 - top
    weights: tuple[Sequence[Tensor], Sequence[Tensor]] = ((across,), (down,))
    if is_cubic is not None:
        chosen = is_cubic[:, None, None]
        weights = _weights(across, chosen), _weights(down, chosen)
    reach = (0, 1) if is_cubic is None else (-1, 0, 1, 2)
    columns = [(left + shift).clamp(0, width - 1).long() for shift in reach]
    starts = [(top + shift).clamp(0, height - 1).long() * width for shift in reach]
    flat = images.flatten(2)
    rows = [
        _interpolate(
            [
                flat.gather(2, (start + column).expand(-1, channels, -1)).float()
                for column in columns
            ],
            weights[0],
        )
        for start in starts
    ]
    pixels = _interpolate(rows, weights[1]).clamp(0, 255).to(torch.uint8)
    colour = channel_values(fill, images)[:, :, 0]
    return torch.where(inside, pixels, colour).view_as(images)


def channel_values(
    values: Sequence[float], images: Tensor, dtype: torch.dtype | None = None
) -> Float[Tensor, "channels 1 1"]:
    """One number per channel, on the images' device, of their type or another.

    Filled on the device: compiled code copies nothing from the host.
    """
    if len(values) != images.shape[1]:
        raise UserError(
            f"{len(values)} values per channel were given for images of "
            f"{images.shape[1]} channels: mean and std need one value per channel."
        )
    parts = [
        torch.full((1,), value, dtype=dtype or images.dtype, device=images.device)
        for value in values
    ]
    return torch.cat(parts)[:, None, None]
