"""Token grids, and interpolation of tables and projections between them."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

Grid = tuple[int, int]


def is_same(old: Sequence[int], new: Sequence[int]) -> bool:
    """Whether two grids are the same, so that nothing needs to be interpolated.

    A graph that is exported for any image size always interpolates: its sides are
    symbols, which would be treated as those of the example.
    """
    if any(isinstance(side, torch.SymInt) for side in (*old, *new)):
        return False
    return tuple(old) == tuple(new)


def resize_tokens(
    table: Float[Tensor, "tokens dim"], num_prefix: int, old: Grid, new: Grid
) -> Float[Tensor, "new_tokens dim"]:
    """A table with one row per token, interpolated in 2-D except its prefix rows."""
    if is_same(old, new):
        return table
    prefix, spatial = table[:num_prefix], table[num_prefix:]
    image = spatial.T.unflatten(1, old).unsqueeze(0)
    image = interpolate(image, new, mode="bicubic", align_corners=False)
    return torch.cat([prefix, image[0].flatten(1).T])


def interpolate(
    image: Tensor, size: int | Grid, *, mode: str, align_corners: bool
) -> Tensor:
    """Resizes an image in float32, whatever its own precision is.

    Weights are interpolated both when loading and at run time, and the results must be
    the same.
    """
    exact = image.float()
    larger = F.interpolate(exact, size, mode=mode, align_corners=align_corners)
    return larger.to(image.dtype)


def resize_axis(
    table: Float[Tensor, "length dim"], length: int
) -> Float[Tensor, "new_length dim"]:
    """A table with one row per position of an axis, interpolated to another length."""
    if is_same(table.shape[:1], (length,)):
        return table
    line = table.T.unsqueeze(0)
    return interpolate(line, length, mode="linear", align_corners=False)[0].T


def resize_offsets(
    offsets: Float[Tensor, "heads rows columns"], grid: Grid
) -> Float[Tensor, "heads new_rows new_columns"]:
    """A bias for each offset between tokens of one grid, interpolated for another."""
    size = (2 * grid[0] - 1, 2 * grid[1] - 1)
    if is_same(offsets.shape[1:], size):
        return offsets
    for axis, length in enumerate(size, start=1):
        if length == 1:
            # A side of one token has offset 0 only: that in the middle.
            offsets = offsets.narrow(axis, offsets.shape[axis] // 2, 1)
    return interpolate(offsets.unsqueeze(0), size, mode="bicubic", align_corners=True)[
        0
    ]


def resize_projection(
    weight: Float[Tensor, "few tokens"], num_prefix: int, old: Grid, new: Grid
) -> Float[Tensor, "few new_tokens"]:
    """A projection with one column per token, interpolated in 2-D except the prefix."""
    by_token = resize_tokens(weight.T, num_prefix, old, new)
    # Sums over more tokens must keep their size.
    return by_token.T * (weight.shape[1] / by_token.shape[0])


def guess_grid(num_tokens: int, likely: Grid) -> Grid | None:
    """The likely grid if it has this many tokens, else a square one."""
    if num_tokens == likely[0] * likely[1]:
        return likely
    side = math.isqrt(max(0, num_tokens))
    return (side, side) if side and side * side == num_tokens else None
