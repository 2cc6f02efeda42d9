"""The samples of a batch that each branch keeps, with drop path (stochastic depth)."""

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch
from jaxtyping import Int32
from torch import Tensor
from torch._subclasses import FakeTensor

from t2t.ops.ranks import ranks
from t2t.shapes import Tokens

KeptIndex = Int32[Tensor, "batch"]
"""Each sample's index among the samples that a branch keeps; -1 if it is dropped."""


def kept_counts(batch: int, drop_rates: Sequence[float]) -> list[int]:
    """How many samples of a batch each branch is computed for.

    Integers near (1 − rate) · batch. Each branch carries its rounding error to the
    next: all branches together drop the sum of their rates.
    """
    wanted = [batch * total for total in accumulate(drop_rates)]
    dropped = [math.floor(total + 0.5) for total in wanted]
    return [max(1, batch - now + before) for before, now in pairwise([0, *dropped])]


def draw_kept_indices(
    batch: int, counts: list[int], device: torch.device
) -> Int32[Tensor, "branches batch"]:
    """A random `KeptIndex` for each branch, which keeps `counts` samples."""
    rank = ranks(torch.rand(len(counts), batch, device=device))
    limit = limits(tuple(counts), rank)[:, None]
    return torch.where(rank < limit, rank, -1).to(torch.int32)


LIMITS: dict[tuple[tuple[int, ...], torch.device], Tensor] = {}


def limits(counts: tuple[int, ...], like: Tensor) -> Tensor:
    """The counts as a tensor, copied to the device once."""
    if torch.compiler.is_compiling() or isinstance(like, FakeTensor):
        # Filled one by one: a list would be copied at every step.
        return torch.stack([like.new_full((), count) for count in counts])
    key = (counts, like.device)
    if key not in LIMITS:
        LIMITS[key] = torch.tensor(counts, device=like.device)
    return LIMITS[key]


def kept_samples(tokens: Tokens, index: KeptIndex, count: int) -> Tokens:
    """The kept samples of a batch, in the order of their index."""
    # Dropped samples all write to one extra row, which is cut off.
    row = torch.where(index >= 0, index, count).long()
    sample = torch.arange(len(row), device=row.device)
    order = row.new_zeros(count + 1).scatter(0, row, sample)
    return tokens[order[:count]]
