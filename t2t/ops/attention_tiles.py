"""How attention's kernels cut tokens into tiles, and which cut is taken."""

from typing import NamedTuple


def next_power_of_2(number: int) -> int:
    """The smallest power of two that is no less."""
    return 1 << (number - 1).bit_length()


def last_tile(tokens: int, side: int) -> int:
    """The side of the tile that holds what whole tiles leave over."""
    left = tokens % side
    if left == 0:
        return side
    return min(side, max(16, next_power_of_2(left)))


class Tiles(NamedTuple):
    """A program has some rows, queries or keys, and columns come to it in tiles."""

    rows: int
    columns: int
    warps: int
    stages: int

    def count(self, tokens: int) -> int:
        """How many tiles of rows there are."""
        return -(-tokens // self.rows)

    def last_rows(self, tokens: int) -> int:
        """How many rows the last has."""
        return last_tile(tokens, self.rows)

    def last_columns(self, tokens: int) -> int:
        """How many columns the last has."""
        return last_tile(tokens, self.columns)


class BackwardTiles(NamedTuple):
    """Two launches: first the gradients of queries, then those of keys."""

    queries: Tiles
    keys: Tiles


def forward_tiles(tokens: int) -> Tiles:
    """What the forward kernel is launched with."""
    if tokens % 128 == 0:
        return Tiles(rows=128, columns=64, warps=8, stages=3)
    return Tiles(rows=64, columns=64, warps=4, stages=2)


def backward_tiles(tokens: int) -> BackwardTiles:
    """What the backward kernels are launched with."""
    if tokens % 128 == 0:
        return BackwardTiles(Tiles(128, 64, 8, 3), Tiles(128, 32, 8, 3))
    return BackwardTiles(Tiles(64, 64, 4, 2), Tiles(64, 32, 4, 3))
