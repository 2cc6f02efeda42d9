"""Position embeddings and relative attention biases."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from t2t.models.token_grid import (
    Grid,
    guess_grid,
    is_same,
    resize_axis,
    resize_offsets,
    resize_tokens,
)
from t2t.registry import Registry
from t2t.shapes import Tokens

CPU = torch.device("cpu")


class Positions(nn.Module):
    """The base of all positions, and `none`: adds nothing."""

    def __init__(self, dim: int, num_prefix: int, grid: Grid, num_heads: int) -> None:
        super().__init__()
        self.dim = dim
        self.num_prefix = num_prefix
        self.grid = grid
        self.num_heads = num_heads

    @property
    def has_bias(self) -> bool:
        """Whether `attention_bias` may return something."""
        return type(self).attention_bias is not Positions.attention_bias

    def embedding(self, grid: Grid) -> Float[Tensor, "tokens dim"] | None:
        """The embedding of prefix and image tokens; None if nothing is added."""
        return None

    def add_to(self, tokens: Tokens, grid: Grid) -> Tokens:
        """Tokens with their positions added."""
        table = self.embedding(grid)
        return tokens if table is None else tokens + table

    def attention_bias(self, grid: Grid) -> Tensor | None:
        """The bias that is added to the attention logits."""
        return None

    def resize_state(self, state: dict[str, Tensor], likely: Grid) -> Grid | None:
        """Interpolates tensors of another grid for this one, in place.

        Returns the grid that they were for, `likely` if possible; None if unknown or if
        nothing depends on the grid.
        """
        return None


class SinusoidPositions(Positions):
    """The fixed 1-D sinusoid over prefix and image tokens.

    It numbers tokens row by row, so the same number is another position on a wider
    grid. For another grid it is therefore interpolated in 2-D like a learned table.
    """

    def __init__(self, dim: int, num_prefix: int, grid: Grid, num_heads: int) -> None:
        super().__init__(dim, num_prefix, grid, num_heads)
        shape = (num_prefix + grid[0] * grid[1], dim)
        table = constant(lambda: sinusoid(*shape), *shape)
        self.register_buffer("table", table, persistent=False)
        self.table: Tensor

    def embedding(self, grid: Grid) -> Float[Tensor, "tokens dim"]:
        return resize_tokens(self.table, self.num_prefix, self.grid, grid)

    def resize_state(self, state: dict[str, Tensor], likely: Grid) -> Grid | None:
        return resize_table(state, self, likely)


def constant(
    compute: Callable[[], Tensor], *shape: int, dtype: torch.dtype = torch.float32
) -> Tensor:
    """A table that is computed on the CPU, on the default device.

    On the meta device it has no values: it may be larger than the memory, and torch
    would import its compiler to compute it, which takes seconds.
    """
    device = torch.get_default_device()
    if device.type == "meta":
        return torch.empty(shape, dtype=dtype)
    return compute().to(device)


def sinusoid(num_positions: int, dim: int) -> Float[Tensor, "positions dim"]:
    """sin at even and cos at odd channels, wavelengths from 2π to 20,000π."""
    return waves(torch.arange(num_positions, dtype=torch.float64, device=CPU), dim)


def waves(
    coordinates: Float[Tensor, " positions"], dim: int
) -> Float[Tensor, "positions dim"]:
    """The sinusoid at any coordinates."""
    channel = torch.arange(dim, dtype=torch.float64, device=coordinates.device)
    frequency = 10000.0 ** (-2 * (channel // 2) / dim)
    angle = coordinates[:, None] * frequency
    return torch.where(channel % 2 == 0, angle.sin(), angle.cos()).float()


def resize_table(
    state: dict[str, Tensor], positions: Positions, likely: Grid
) -> Grid | None:
    """`resize_state` for a table with one row per token."""
    if "table" not in state:
        return None
    table, num_prefix = state["table"], positions.num_prefix
    old = guess_grid(len(table) - num_prefix, likely)
    if old and old != positions.grid:
        state["table"] = resize_tokens(table.float(), num_prefix, old, positions.grid)
    return old


class PlaneSinusoidPositions(Positions):
    """Fixed 2-D sinusoids: half of the channels encode the row, half the column.

    Coordinates are relative to the image, so they mean the same on every grid. Prefix
    tokens get none.
    """

    SIDE = 16.0
    """Height and width of every image in the units of the wavelengths."""

    def __init__(self, dim: int, num_prefix: int, grid: Grid, num_heads: int) -> None:
        super().__init__(dim, num_prefix, grid, num_heads)
        shape = (num_prefix + grid[0] * grid[1], dim)
        table = constant(lambda: self.compute_table(grid, CPU), *shape)
        self.register_buffer("table", table, persistent=False)
        self.table: Tensor

    def embedding(self, grid: Grid) -> Float[Tensor, "tokens dim"]:
        if is_same(grid, self.grid):
            return self.table
        # On the device: a CUDA graph cannot copy from the host.
        return self.compute_table(grid, self.table.device).to(self.table)

    def token_centres(self, num: int, device: torch.device) -> Float[Tensor, " num"]:
        """The coordinates of tokens along a side: 0, 1, 2, … if there are `SIDE`."""
        numbers = torch.arange(num, dtype=torch.float64, device=device)
        return (numbers + 0.5) * self.SIDE / num - 0.5

    def compute_table(
        self, grid: Grid, device: torch.device
    ) -> Float[Tensor, "tokens dim"]:
        """The table that is added to the tokens of a grid."""
        half = self.dim // 2
        rows = waves(self.token_centres(grid[0], device), half)
        columns = waves(self.token_centres(grid[1], device), self.dim - half)
        prefix = rows.new_zeros(self.num_prefix, self.dim)
        return torch.cat([prefix, concat_axes(rows, columns)])


def concat_axes(
    rows: Float[Tensor, "rows half"], columns: Float[Tensor, "columns other_half"]
) -> Float[Tensor, "tokens dim"]:
    """The vector of its row and that of its column for each token of a grid."""
    return torch.cat(
        [
            rows[:, None].expand(-1, columns.shape[0], -1),
            columns[None].expand(rows.shape[0], -1, -1),
        ],
        dim=-1,
    ).flatten(0, 1)


class FixedPositions(Positions):
    """A frozen table from a checkpoint, interpolated in 2-D for other grids."""

    def __init__(self, dim: int, num_prefix: int, grid: Grid, num_heads: int) -> None:
        super().__init__(dim, num_prefix, grid, num_heads)
        shape = (num_prefix + grid[0] * grid[1], dim)
        self.register_buffer("table", constant(lambda: sinusoid(*shape), *shape))
        self.table: Tensor

    def embedding(self, grid: Grid) -> Float[Tensor, "tokens dim"]:
        return resize_tokens(self.table, self.num_prefix, self.grid, grid)

    def resize_state(self, state: dict[str, Tensor], likely: Grid) -> Grid | None:
        return resize_table(state, self, likely)


class LearnedPositions(FixedPositions):
    """One learned vector per token, interpolated in 2-D for other grids."""

    def __init__(self, dim: int, num_prefix: int, grid: Grid, num_heads: int) -> None:
        super().__init__(dim, num_prefix, grid, num_heads)
        table = nn.init.trunc_normal_(torch.empty(self.table.shape), std=0.02)
        del self.table
        self.register_parameter("table", nn.Parameter(table))


class AxisPositions(Positions):
    """A learned half-vector per row and one per column, concatenated per token."""

    def __init__(self, dim: int, num_prefix: int, grid: Grid, num_heads: int) -> None:
        super().__init__(dim, num_prefix, grid, num_heads)
        half = dim // 2
        self.rows = nn.Parameter(torch.empty(grid[0], half))
        self.columns = nn.Parameter(torch.empty(grid[1], dim - half))
        if num_prefix:
            self.prefix = nn.Parameter(torch.empty(num_prefix, dim))
        for table in self.parameters():
            nn.init.trunc_normal_(table, std=0.02)

    def embedding(self, grid: Grid) -> Float[Tensor, "tokens dim"]:
        rows = resize_axis(self.rows, grid[0])
        table = concat_axes(rows, resize_axis(self.columns, grid[1]))
        return torch.cat([self.prefix, table]) if self.num_prefix else table

    def resize_state(self, state: dict[str, Tensor], likely: Grid) -> Grid | None:
        if "rows" not in state:
            return None
        rows, columns = state["rows"], state["columns"]
        state["rows"] = resize_axis(rows.float(), self.grid[0])
        state["columns"] = resize_axis(columns.float(), self.grid[1])
        return len(rows), len(columns)


class RelativePositions(Positions):
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
        num = rows * columns
        index = constant(lambda: relative_index(grid, CPU), num, num, dtype=torch.long)
        self.register_buffer("index", index, persistent=False)
        self.index: Tensor

    def attention_bias(self, grid: Grid) -> Float[Tensor, "one heads queries keys"]:
        index = self.index
        if not is_same(grid, self.grid):
            index = relative_index(grid, index.device)
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

    def resize_state(self, state: dict[str, Tensor], likely: Grid) -> Grid | None:
        if "offsets" not in state:
            return None
        offsets = state["offsets"]
        state["offsets"] = resize_offsets(offsets.float(), self.grid)
        return (offsets.shape[1] + 1) // 2, (offsets.shape[2] + 1) // 2


def relative_index(grid: Grid, device: torch.device) -> Tensor:
    """The index of the offset between each pair of tokens."""
    rows, columns = grid
    row = torch.arange(rows, device=device)[:, None].expand(rows, columns).flatten()
    column = torch.arange(columns, device=device)[None].expand(rows, columns).flatten()
    row_offset = row[None] - row[:, None] + rows - 1
    column_offset = column[None] - column[:, None] + columns - 1
    return row_offset * (2 * columns - 1) + column_offset


POSITIONS: Registry[Callable[[int, int, Grid, int], Positions]] = Registry(
    "positions",
    {
        "none": Positions,
        "sinusoid": SinusoidPositions,
        "sinusoid_2d": PlaneSinusoidPositions,
        "learned_1d": LearnedPositions,
        "learned_2d": AxisPositions,
        "relative": RelativePositions,
        "fixed": FixedPositions,
    },
)
register_positions = POSITIONS.register
