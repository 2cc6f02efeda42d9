"""Adds up the partial sums of all programs of a kernel."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

Partial = Float[Tensor, "parts *columns"]


class SumTiles(NamedTuple):
    """The tile that a program reads at a time."""

    rows: int
    columns: int
    warps: int


SUM_TILES = SumTiles(rows=256, columns=8, warps=8)


def sum_partials_reference(partial: Partial) -> Float[Tensor, "*columns"]:
    """The sum over the first axis."""
    return partial.sum(0)


def sum_partials(
    partial: Partial, tiles: SumTiles = SUM_TILES
) -> Float[Tensor, "*columns"]:
    """The sum over the first axis by one kernel; torch's sum clears a buffer first."""
    from t2t.ops.kernels.launch import launch
    from t2t.ops.kernels.partial_sums import sum_partials as kernel

    rows = partial.shape[0]
    out = torch.empty(partial.shape[1:], dtype=torch.float32, device=partial.device)
    columns = out.numel()
    launch(kernel)[(-(-columns // tiles.columns),)](
        partial,
        out,
        rows,
        columns,
        ROWS=tiles.rows,
        COLUMNS=tiles.columns,
        num_warps=tiles.warps,
    )
    return out
