"""Tiles of tokens that the attention kernels are launched with."""

from typing import NamedTuple


def next_power_of_2(number: int) -> int:
    """The smallest power of two ≥ number."""
    return 1 << (number - 1).bit_length()


def last_tile(tokens: int, side: int) -> int:
    """The side of the last tile, which holds the tokens left over by whole tiles."""
    left = tokens % side
    if left == 0:
        return side
    return min(side, max(16, next_power_of_2(left)))


class Tiles(NamedTuple):
    """A program computes rows (queries or keys) in a loop over tiles of columns."""

    rows: int
    columns: int
    warps: int
    stages: int

    def count(self, tokens: int) -> int:
        """The number of tiles of rows."""
        return -(-tokens // self.rows)

    def last_rows(self, tokens: int) -> int:
        """Rows of the last tile."""
        return last_tile(tokens, self.rows)

    def last_columns(self, tokens: int) -> int:
        """Columns of the last tile."""
        return last_tile(tokens, self.columns)


class BackwardTiles(NamedTuple):
    """Tiles of the two backward launches: gradients of queries, then of keys."""

    queries: Tiles
    keys: Tiles


def forward_tiles(tokens: int) -> Tiles:
    """Tiles of the forward kernel."""
    if tokens % 128 == 0:
        return Tiles(rows=128, columns=64, warps=8, stages=3)
    return Tiles(rows=64, columns=64, warps=4, stages=2)


def backward_tiles(tokens: int) -> BackwardTiles:
    """Tiles of the backward kernels."""
    if tokens % 128 == 0:
        return BackwardTiles(Tiles(128, 64, 8, 3), Tiles(128, 32, 8, 3))
    return BackwardTiles(Tiles(64, 64, 4, 2), Tiles(64, 32, 4, 3))
