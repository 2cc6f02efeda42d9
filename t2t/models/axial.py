"""Axial attention: along rows and along columns of the token grid."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from t2t.errors import UserError
from t2t.models.hooks import is_traced
from t2t.models.layers import AttentionMap, Bias, SelfAttention
from t2t.models.token_grid import Grid
from t2t.shapes import Tokens


class AxialMask(nn.Module):
    """A bias for all pairs: 0 for those that see each other, else -∞."""

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads

    def forward(self, logits: AttentionMap, grid: Grid) -> Bias:
        rows, columns = grid
        num_tokens, device = logits.shape[-1], logits.device
        num_prefix = num_tokens - rows * columns
        place = torch.arange(rows * columns, device=device)
        masks = []
        for line in (place // columns, place % columns):
            sees = torch.ones(num_tokens, num_tokens, dtype=torch.bool, device=device)
            sees[num_prefix:, num_prefix:] = line[:, None] == line[None]
            masks.append(sees)
        zeros = logits.new_zeros(num_tokens, num_tokens)
        along_rows, along_columns = (
            zeros.masked_fill(~sees, float("-inf")) for sees in masks
        )
        num_row_heads = self.num_heads - self.num_heads // 2
        return torch.stack(
            [along_rows] * num_row_heads + [along_columns] * (self.num_heads // 2)
        )[None]


class AxialAttention(SelfAttention):
    """Half of the heads attend along a token's row, half along its column.

    Prefix tokens see all tokens, and all tokens see them. A layer costs
    rows + columns products per token in place of rows · columns.
    """

    needs_all_tokens = True

    def __init__(
        self, dim: int, num_heads: int, *, qkv: nn.Module, scale: float | None = None
    ) -> None:
        if num_heads < 2:
            raise UserError(
                "mixer='axial' needs num_heads of 2 or more: half of the heads for "
                "rows, half for columns."
            )
        super().__init__(dim, num_heads, qkv=qkv, scale=scale)
        self.mask = AxialMask(num_heads)

    def forward(self, x: Tokens, grid: Grid, bias: Bias | None = None) -> Tokens:
        dropout = self.attn.attn_drop
        drop_rate = dropout.p if dropout.training else 0.0
        query, key, value = self.heads(self.project(x, grid), grid)
        if bias is not None or is_traced(x) or self.attn.has_hooks():
            mixed = self.attn(self.logits(query, key, bias, grid)) @ value
            return self.gate(self.proj(mixed.transpose(1, 2).flatten(2)))
        rows, columns = grid
        num_prefix = x.shape[1] - rows * columns
        half = self.num_heads - self.num_heads // 2

        def along(parts: list[Tensor], by_column: bool) -> Tensor:
            """The output of some heads, for the tokens of the image."""
            query, key, value = (
                lines_of(part, grid, num_prefix, by_column, with_prefix=number > 0)
                for number, part in enumerate(parts)
            )
            mixed = F.scaled_dot_product_attention(
                query, key, value, None, drop_rate, scale=self.scale
            ).unflatten(0, (-1, columns if by_column else rows))
            # (images, lines, heads, tokens of a line, channels)
            order = (0, 3, 1, 2, 4) if by_column else (0, 1, 3, 2, 4)
            return mixed.permute(*order).flatten(3).flatten(1, 2)

        parts = (query, key, value)
        mixed = torch.cat(
            [
                along([part[:, :half] for part in parts], by_column=False),
                along([part[:, half:] for part in parts], by_column=True),
            ],
            dim=-1,
        )
        if num_prefix:
            first = F.scaled_dot_product_attention(
                query[:, :, :num_prefix], key, value, None, drop_rate, scale=self.scale
            )
            mixed = torch.cat([first.transpose(1, 2).flatten(2), mixed], dim=1)
        return self.gate(self.proj(mixed))

    def logits(
        self, query: Tensor, key: Tensor, bias: Bias | None, grid: Grid
    ) -> AttentionMap:
        logits = super().logits(query, key, bias, grid)
        return logits + self.mask(logits, grid)


def lines_of(
    heads: Tensor, grid: Grid, num_prefix: int, by_column: bool, *, with_prefix: bool
) -> Tensor:
    """The tokens of each row or column as a sequence, after the prefix tokens."""
    prefix, image = heads[:, :, :num_prefix], heads[:, :, num_prefix:]
    image = image.unflatten(2, grid)
    # To (images, lines, heads, tokens of a line, channels).
    order = (0, 3, 1, 2, 4) if by_column else (0, 2, 1, 3, 4)
    lines = image.permute(*order)
    if with_prefix and num_prefix:
        prefix = prefix[:, None].expand(-1, lines.shape[1], -1, -1, -1)
        lines = torch.cat([prefix, lines], dim=3)
    return lines.flatten(0, 1)
