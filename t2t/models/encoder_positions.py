"""Positions as an encoder uses them: at the stem, at every layer, or shared."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from t2t.errors import UserError, choose
from t2t.models.blocks import check_same_shape
from t2t.models.hooks import is_hooked
from t2t.models.positions import POSITIONS, Positions
from t2t.models.token_grid import Grid
from t2t.models.wirings import BlockSpec
from t2t.registry import check_methods
from t2t.shapes import Tokens

POSITIONS_AT = ("stem", "every_layer", "shared")


class EncoderPositions(nn.Module):
    """Positions before the first layer, at every layer, or shared by all layers.

    An attention bias at the stem acts in the first layer only.
    """

    def __init__(
        self,
        kind: str,
        positions_at: str,
        specs: Sequence[BlockSpec],
        num_prefix: int,
    ) -> None:
        super().__init__()
        choose("positions_at", positions_at, dict.fromkeys(POSITIONS_AT))
        dims = [spec.dim for spec in specs]
        if positions_at == "shared" and len(set(dims)) > 1 and kind != "none":
            raise UserError(
                "positions_at='shared' needs layers of one width, and these have "
                f"{min(dims)} to {max(dims)}; use positions_at='every_layer'."
            )
        self.positions_at = positions_at
        self.user_positions = POSITIONS.user_choice(kind)
        self.tables = nn.ModuleList(
            POSITIONS.build(
                kind, Positions, spec.dim, num_prefix, spec.grid, spec.config.num_heads
            )
            for spec in (specs if positions_at == "every_layer" else specs[:1])
        )
        self.drop = nn.Dropout(0.0)
        if self.user_positions:
            for table in self.tables:
                check_user_positions(self.user_positions, table)

    @property
    def is_stem_only(self) -> bool:
        """Whether positions only add to the tokens before the first layer."""
        has_bias = any(table.has_bias for table in self.tables)
        return self.positions_at == "stem" and not has_bias

    @property
    def only_adds(self) -> bool:
        """Whether all that is done before the first layer is to add a table."""
        table = self.tables[0]
        assert isinstance(table, Positions)
        hooked = any(is_hooked(part) for part in (self, table, self.drop))
        drops = self.drop.training and self.drop.p > 0
        own = type(table).add_to is Positions.add_to
        return self.is_stem_only and own and not drops and not hooked

    def add_to(self, tokens: Tokens, layer: int, grid: Grid) -> Tokens:
        """Tokens with the positions of a layer added."""
        table = self.at(layer)
        if table is not None:
            placed = table.add_to(tokens, grid)
            if self.user_positions:
                check_same_shape(f"add_to of {self.user_positions}", placed, tokens)
            tokens = placed
        return self.drop(tokens) if layer == 0 and self.drop.p > 0 else tokens

    def forward(
        self, tokens: Tokens, layer: int, grid: Grid
    ) -> tuple[Tokens, Tensor | None]:
        """`add_to` and `attention_bias` in one call, as one node of an FX graph."""
        return self.add_to(tokens, layer, grid), self.attention_bias(layer, grid)

    def has_bias(self, layer: int) -> bool:
        """Whether positions add to the attention logits of a layer."""
        table = self.at(layer)
        return table is not None and table.has_bias

    def attention_bias(self, layer: int, grid: Grid) -> Tensor | None:
        """The bias of a layer's attention logits."""
        table = self.at(layer)
        return None if table is None else table.attention_bias(grid)

    def at(self, layer: int) -> Positions | None:
        """The positions that act in a layer."""
        if self.positions_at == "stem" and layer > 0:
            return None
        table = self.tables[layer if self.positions_at == "every_layer" else 0]
        assert isinstance(table, Positions)
        return table


def check_user_positions(part: str, table: Any) -> None:
    """Raises an error for methods with other arguments or results than the base's."""
    check_methods(part, type(table), Positions)
    grid = table.grid
    num_tokens = table.num_prefix + grid[0] * grid[1]
    check_shape(f"embedding of {part}", table.embedding(grid), num_tokens, table.dim)
    bias = table.attention_bias(grid)
    num_heads = 1 if getattr(bias, "shape", ())[:2] == (1, 1) else table.num_heads
    name = f"attention_bias of {part}"
    check_shape(name, bias, 1, num_heads, num_tokens, num_tokens)


def check_shape(what: str, result: Any, *shape: int) -> None:
    """Raises an error unless a user's method returns None or a tensor of this shape."""
    if result is not None and getattr(result, "shape", None) != shape:
        found = tuple(getattr(result, "shape", ())) or f"a {type(result).__name__}"
        raise UserError(
            f"{what} returned {found}; it must be of the shape {shape}, or None."
        )
