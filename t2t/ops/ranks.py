"""Each value's rank within its row."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from t2t.ops.attention_tiles import next_power_of_2
from t2t.ops.availability import HAS_TRITON, needs_torch_ops

Rows = Float[Tensor, "rows columns"]
Ranks = Int64[Tensor, "rows columns"]

MAX_COLUMNS = 4096
"""Longer rows are sorted: comparing all pairs takes the square of the time."""
BLOCK = 32
"""Values that a program ranks."""
OTHERS = 128
"""Values that it compares them with at a time."""


def ranks_reference(values: Rows) -> Ranks:
    """0 for the smallest value of a row; equal values rank in their order."""
    return values.argsort(stable=True, dim=1).argsort(1)


def ranks(values: Rows) -> Ranks:
    """The same by comparing all pairs: one kernel, where torch sorts twice."""
    is_short = values.shape[1] <= MAX_COLUMNS
    if HAS_TRITON and values.is_cuda and is_short and not needs_torch_ops():
        from t2t.ops.operations import fused_ranks

        found: Tensor = fused_ranks(values)
        return found
    return ranks_reference(values)


def fused_forward(values: Tensor) -> Tensor:
    """The ranks."""
    from t2t.ops.kernels.launch import launch
    from t2t.ops.kernels.ranks import rank_values

    values = values.contiguous()
    rows, columns = values.shape
    out = torch.empty(rows, columns, dtype=torch.int64, device=values.device)
    launch(rank_values)[(rows, -(-columns // BLOCK))](
        values,
        out,
        columns,
        BLOCK=BLOCK,
        OTHERS=min(OTHERS, next_power_of_2(columns)),
        num_warps=4,
    )
    return out
