"""Where a token is: what is added to tokens, or to their attention."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from t2t.errors import UserError, choose
from t2t.shapes import Tokens

Grid = tuple[int, int]
PLACES = ("stem", "every_layer", "shared")


def resize_tokens(
    table: Float[Tensor, "tokens dim"], num_prefix: int, old: Grid, new: Grid
) -> Float[Tensor, "new_tokens dim"]:
    """A table with one row a token, interpolated in 2-D but for its prefix rows."""
    if old == new:
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


class NoPositions(nn.Module):
    """Tokens are a set: nothing tells where they are."""

    def __init__(self, dim: int, num_prefix: int, grid: Grid, num_heads: int) -> None:
        super().__init__()
        self.dim = dim
        self.num_prefix = num_prefix
        self.grid = grid
        self.num_heads = num_heads

    def add_to(self, tokens: Tokens, grid: Grid) -> Tokens:
        """Tokens with their positions added."""
        return tokens

    def attention_bias(self, grid: Grid) -> Tensor | None:
        """What positions add to the attention logits."""
        return None


class SinusoidPositions(NoPositions):
    """The fixed 1-D sinusoid over prefix and image tokens.

    It numbers tokens row by row, so on a wider grid the same number would mean another
    position. For another grid it is therefore interpolated in 2-D like a learned table.
    """

    def __init__(self, dim: int, num_prefix: int, grid: Grid, num_heads: int) -> None:
        super().__init__(dim, num_prefix, grid, num_heads)
        table = sinusoid(num_prefix + grid[0] * grid[1], dim)
        self.register_buffer("table", table, persistent=False)
        self.table: Tensor

    def add_to(self, tokens: Tokens, grid: Grid) -> Tokens:
        return tokens + resize_tokens(self.table, self.num_prefix, self.grid, grid)


def sinusoid(num_positions: int, dim: int) -> Float[Tensor, "positions dim"]:
    """sin at even and cos at odd channels, wavelengths from 2π to 20,000π."""
    return waves(torch.arange(num_positions, dtype=torch.float64), dim)


def waves(places: Float[Tensor, " places"], dim: int) -> Float[Tensor, "places dim"]:
    """The same at any places on a line."""
    channel = torch.arange(dim, dtype=torch.float64)
    frequency = 10000.0 ** (-2 * (channel // 2) / dim)
    angle = places[:, None] * frequency
    return torch.where(channel % 2 == 0, angle.sin(), angle.cos()).float()


class PlaneSinusoidPositions(NoPositions):
    """Fixed sinusoids: half of the channels tell a token's row, half its column.

    They tell the place within the image, so they mean the same on every grid. Prefix
    tokens, which have no place, are left as they are.
    """

    SIDE = 16.0
    """Height and width of every image, in what the waves are as long as."""

    def __init__(self, dim: int, num_prefix: int, grid: Grid, num_heads: int) -> None:
        super().__init__(dim, num_prefix, grid, num_heads)
        self.register_buffer("table", self.computed(grid), persistent=False)
        self.table: Tensor

    def add_to(self, tokens: Tokens, grid: Grid) -> Tokens:
        own = grid == self.grid
        return tokens + (self.table if own else self.computed(grid).to(self.table))

    def middles(self, num: int) -> Float[Tensor, " num"]:
        """Where tokens stand along a side; 0, 1, 2, … where there are `SIDE`."""
        return (torch.arange(num, dtype=torch.float64) + 0.5) * self.SIDE / num - 0.5

    def computed(self, grid: Grid) -> Float[Tensor, "tokens dim"]:
        """What is added to the tokens of a grid."""
        half = self.dim // 2
        rows = waves(self.middles(grid[0]), half)
        columns = waves(self.middles(grid[1]), self.dim - half)
        prefix = rows.new_zeros(self.num_prefix, self.dim)
        return torch.cat([prefix, joined(rows, columns)])


def joined(
    rows: Float[Tensor, "rows half"], columns: Float[Tensor, "columns other_half"]
) -> Float[Tensor, "tokens dim"]:
    """For each token of a grid, what is said of its row, then of its column."""
    return torch.cat(
        [
            rows[:, None].expand(-1, len(columns), -1),
            columns[None].expand(len(rows), -1, -1),
        ],
        dim=-1,
    ).flatten(0, 1)


class FixedPositions(NoPositions):
    """A frozen table that came with weights, interpolated in 2-D for other grids."""

    def __init__(self, dim: int, num_prefix: int, grid: Grid, num_heads: int) -> None:
        super().__init__(dim, num_prefix, grid, num_heads)
        self.register_buffer("table", sinusoid(num_prefix + grid[0] * grid[1], dim))
        self.table: Tensor

    def add_to(self, tokens: Tokens, grid: Grid) -> Tokens:
        return tokens + resize_tokens(self.table, self.num_prefix, self.grid, grid)


class LearnedPositions(FixedPositions):
    """One learned vector a token, interpolated in 2-D for other grids."""

    def __init__(self, dim: int, num_prefix: int, grid: Grid, num_heads: int) -> None:
        super().__init__(dim, num_prefix, grid, num_heads)
        table = nn.init.trunc_normal_(torch.empty_like(self.table), std=0.02)
        del self.table
        self.register_parameter("table", nn.Parameter(table))


class AxisPositions(NoPositions):
    """One learned half-vector a row and one a column, joined for each token."""

    def __init__(self, dim: int, num_prefix: int, grid: Grid, num_heads: int) -> None:
        super().__init__(dim, num_prefix, grid, num_heads)
        half = dim // 2
        self.rows = nn.Parameter(torch.empty(grid[0], half))
        self.columns = nn.Parameter(torch.empty(grid[1], dim - half))
        if num_prefix:
            self.prefix = nn.Parameter(torch.empty(num_prefix, dim))
        for table in self.parameters():
            nn.init.trunc_normal_(table, std=0.02)

    def add_to(self, tokens: Tokens, grid: Grid) -> Tokens:
        rows = resize_axis(self.rows, grid[0])
        table = joined(rows, resize_axis(self.columns, grid[1]))
        if self.num_prefix:
            table = torch.cat([self.prefix, table])
        return tokens + table


def resize_axis(
    table: Float[Tensor, "length dim"], length: int
) -> Float[Tensor, "new_length dim"]:
    """A table with one row a position along an axis, interpolated to another length."""
    if table.shape[0] == length:
        return table
    line = table.T.unsqueeze(0)
    return interpolate(line, length, mode="linear", align_corners=False)[0].T


class RelativePositions(NoPositions):
    """A learned attention bias for each head and each offset between two tokens.

    Pairs with a prefix token share three biases: from it, to it, and within the prefix.
    """

    def __init__(self, dim: int, num_prefix: int, grid: Grid, num_heads: int) -> None:
        super().__init__(dim, num_prefix, grid, num_heads)
        rows, columns = grid
        self.offsets = nn.Parameter(
            torch.empty(num_heads, 2 * rows - 1, 2 * columns - 1)
        )
        nn.init.trunc_normal_(self.offsets, std=0.02)
        if num_prefix:
            self.prefix = nn.Parameter(torch.zeros(num_heads, 3))
        self.register_buffer("index", relative_index(grid), persistent=False)
        self.index: Tensor

    def attention_bias(self, grid: Grid) -> Float[Tensor, "one heads queries keys"]:
        index = self.index
        if grid != self.grid:
            index = relative_index(grid).to(index.device)
        bias = resize_offsets(self.offsets, grid).flatten(1)[:, index]
        if not self.num_prefix:
            return bias.unsqueeze(0)
        num_heads, num_tokens, _ = bias.shape
        from_prefix, to_prefix, within = self.prefix[:, :, None, None].unbind(1)
        first = from_prefix.expand(num_heads, self.num_prefix, num_tokens)
        corner = within.expand(num_heads, self.num_prefix, self.num_prefix)
        left = to_prefix.expand(num_heads, num_tokens, self.num_prefix)
        bias = torch.cat(
            [torch.cat([corner, first], dim=2), torch.cat([left, bias], dim=2)], dim=1
        )
        return bias.unsqueeze(0)


def resize_offsets(
    offsets: Float[Tensor, "heads rows columns"], grid: Grid
) -> Float[Tensor, "heads new_rows new_columns"]:
    """A bias for each offset between tokens of one grid, interpolated for another."""
    size = (2 * grid[0] - 1, 2 * grid[1] - 1)
    if offsets.shape[1:] == size:
        return offsets
    for axis, length in enumerate(size, start=1):
        if length == 1:
            # Where a side has one token, offset 0 alone is left: that in the middle.
            offsets = offsets.narrow(axis, offsets.shape[axis] // 2, 1)
    return interpolate(offsets.unsqueeze(0), size, mode="bicubic", align_corners=True)[
        0
    ]


def relative_index(grid: Grid) -> Tensor:
    """For each pair of tokens, which offset lies between them."""
    rows, columns = grid
    row = torch.arange(rows).repeat_interleave(columns)
    column = torch.arange(columns).repeat(rows)
    row_offset = row[None] - row[:, None] + rows - 1
    column_offset = column[None] - column[:, None] + columns - 1
    return row_offset * (2 * columns - 1) + column_offset


POSITIONS: dict[str, type[NoPositions]] = {
    "none": NoPositions,
    "sinusoid": SinusoidPositions,
    "sinusoid_2d": PlaneSinusoidPositions,
    "learned_1d": LearnedPositions,
    "learned_2d": AxisPositions,
    "relative": RelativePositions,
    "fixed": FixedPositions,
}


class PlacedPositions(nn.Module):
    """Positions where they enter: before the first layer, at every one, or shared.

    An attention bias at the stem acts in the first layer only.
    """

    def __init__(
        self,
        kind: str,
        place: str,
        dims: Sequence[int],
        num_prefix: int,
        grid: Grid,
        num_heads: int,
    ) -> None:
        super().__init__()
        cls = choose("positions", kind, POSITIONS)
        choose("positions_at", place, dict.fromkeys(PLACES))
        if place == "shared" and len(set(dims)) > 1 and kind != "none":
            raise UserError(
                "positions_at='shared' needs layers of one width, and these have "
                f"{min(dims)} to {max(dims)}; use positions_at='every_layer'."
            )
        self.place = place
        widths = dims if place == "every_layer" else dims[:1]
        self.tables = nn.ModuleList(
            cls(dim, num_prefix, grid, num_heads) for dim in widths
        )
        self.drop = nn.Dropout(0.0)

    @property
    def only_at_the_stem(self) -> bool:
        """Whether positions are added before the first layer, and act nowhere else."""
        biases = any(isinstance(table, RelativePositions) for table in self.tables)
        return self.place == "stem" and not biases

    def add_to(self, tokens: Tokens, layer: int, grid: Grid) -> Tokens:
        """Tokens entering a layer, with what positions add there."""
        table = self.at(layer)
        tokens = tokens if table is None else table.add_to(tokens, grid)
        return self.drop(tokens) if layer == 0 and self.drop.p > 0 else tokens

    def forward(
        self, tokens: Tokens, layer: int, grid: Grid
    ) -> tuple[Tokens, Tensor | None]:
        """`add_to` and `attention_bias` in one call, as one node of an FX graph."""
        return self.add_to(tokens, layer, grid), self.attention_bias(layer, grid)

    def biases(self, layer: int) -> bool:
        """Whether positions add to the attention logits of a layer."""
        return isinstance(self.at(layer), RelativePositions)

    def attention_bias(self, layer: int, grid: Grid) -> Tensor | None:
        """What positions add to the attention logits of a layer."""
        table = self.at(layer)
        return None if table is None else table.attention_bias(grid)

    def at(self, layer: int) -> NoPositions | None:
        """The positions that act in a layer."""
        if self.place == "stem" and layer > 0:
            return None
        table = self.tables[layer if self.place == "every_layer" else 0]
        assert isinstance(table, NoPositions)
        return table
