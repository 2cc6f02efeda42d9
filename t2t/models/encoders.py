"""The backbone: a sequence of blocks with positions."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from t2t.errors import UserError, choose
from t2t.models.blocks import Block, check_same_shape
from t2t.models.config import ModelConfig
from t2t.models.fusion import (
    FEWEST_DROPPED,
    are_plain,
    block_weights,
    is_fused,
    is_wrapped,
)
from t2t.models.hooks import is_hooked
from t2t.models.layers import SelfAttention
from t2t.models.positions import POSITIONS, Positions
from t2t.models.token_grid import Grid
from t2t.models.wirings import WIRINGS, BlockSpec, Downsample
from t2t.ops.block_stack import BlockWeights, block_stack
from t2t.ops.embedding import TokenParts, embed
from t2t.ops.performer_step import compute_dtype
from t2t.registry import check_methods
from t2t.shapes import Tokens

Rows = Int64[Tensor, "batch rows"]
"""Numbers of tokens of each image, without the prefix tokens."""
NEED_ALL_TOKENS = (
    "not mixer='linformer', 'axial' or 'conv_attention', mlp='depthwise' or "
    "wiring='pyramid'"
)
"""Choices that set `needs_all_tokens`, in the words of an error."""
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


class Encoder(nn.Module):
    """A sequence of blocks, with positions."""

    def __init__(self, grid: Grid, config: ModelConfig) -> None:
        super().__init__()
        wiring = choose("wiring", config.wiring, WIRINGS)(config, grid)
        specs = wiring.specs
        rates = torch.linspace(0, config.drop_path, len(specs), device="cpu").tolist()
        self.positions = EncoderPositions(
            config.positions, config.positions_at, specs, config.num_prefix_tokens
        )
        blocks = [
            spec.kind(spec.dim, spec.grid, rate, spec.config)
            for spec, rate in zip(specs, rates, strict=True)
        ]
        self.blocks = nn.ModuleList(blocks)
        self.stage_ends = wiring.stage_ends
        # By the number of the block that it follows.
        self.downsamples = nn.ModuleDict(
            {
                str(last): Downsample(
                    specs[last].dim,
                    specs[last + 1].dim,
                    config.num_prefix_tokens,
                    config.norm_eps,
                )
                for last in wiring.stage_ends[:-1]
            }
        )
        self.out_dims = [block.out_dim for block in blocks]
        self.checkpointing = False
        self.num_prefix = config.num_prefix_tokens
        self.token_share = 1.0
        self.residual_dtype: torch.dtype | None = None
        """Precision of the residual stream in fused blocks; None: the compute dtype."""

    @property
    def out_dim(self) -> int:
        """Width of the tokens after the last block."""
        return self.out_dims[-1]

    def keep(self, num_blocks: int) -> None:
        """Removes all but the first blocks."""
        self.blocks = self.blocks[:num_blocks]
        self.out_dims = self.out_dims[:num_blocks]
        self.stage_ends = tuple(end for end in self.stage_ends if end < num_blocks)
        for name in [*self.downsamples]:
            if int(name) >= num_blocks - 1:
                del self.downsamples[name]

    @property
    def feature_layers(self) -> list[int]:
        """The blocks whose outputs are features: all, or the last of each stage."""
        return [*self.stage_ends] or [*range(len(self.blocks))]

    def grids(self, grid: Grid) -> list[Grid]:
        """The token grid in each block, for that of the first."""
        grids = []
        for layer in range(len(self.blocks)):
            grids.append(grid)
            if str(layer) in self.downsamples:
                grid = self.downsample(layer).out_grid(grid)
        return grids

    def downsample(self, layer: int) -> Downsample:
        """What follows the last block of a stage but the last."""
        module = self.downsamples[str(layer)]
        assert isinstance(module, Downsample)
        return module

    def next_stage(self, layer: int, tokens: Tokens, grid: Grid) -> tuple[Tokens, Grid]:
        """Tokens and grid for the next block: split again where a stage ends."""
        if str(layer) not in self.downsamples:
            return tokens, grid
        module = self.downsample(layer)
        return module(tokens, grid), module.out_grid(grid)

    def forward(
        self,
        tokens: Tokens | TokenParts,
        grid: Grid,
        norm: nn.Module,
        num_read: int | None = None,
        kept: Rows | None = None,
    ) -> Tokens:
        """Normalised tokens after the last block: the first `num_read`, or all.

        With `kept`, the blocks see only these of each image's tokens, in that order,
        after the prefix tokens.
        """
        features = tokens.features if isinstance(tokens, TokenParts) else tokens
        stack, dtype = self.stack(features, norm), features.dtype
        if stack is not None:
            dtype = compute_dtype(features)
        stream = self.residual_dtype or dtype
        if isinstance(tokens, TokenParts):
            fused = None
            if stack is not None and kept is None:
                fused = self.embedded(tokens, grid, stream)
            tokens = self.enter(tokens.joined(), grid, kept) if fused is None else fused
        else:
            tokens = self.enter(tokens, grid, kept)
        if stack is None:
            for layer in range(len(self.blocks)):
                step = self.step if layer > 0 else self.apply_block
                tokens = step(layer, tokens, grid)
                tokens, grid = self.next_stage(layer, tokens, grid)
            return norm(tokens)[:, :num_read]
        assert isinstance(norm, nn.LayerNorm)
        mixer, rates = self.plain_blocks()[0].mixer, self.drop_rates()
        assert isinstance(mixer, SelfAttention)
        final = (norm.weight, norm.bias)
        heads = (mixer.num_heads, mixer.scale)
        num_read = tokens.shape[1] if num_read is None else num_read
        return block_stack(
            tokens.to(stream),
            stack,
            final,
            *heads,
            norm.eps,
            num_read,
            rates if max(rates) > 0 else None,
            dtype,
        )

    def enter(self, tokens: Tokens, grid: Grid, kept: Rows | None) -> Tokens:
        """The tokens that enter the first block, some of them dropped."""
        tokens = self.positions.add_to(tokens, 0, grid)
        if kept is not None:
            return keep_rows(tokens, self.num_prefix, kept)
        if self.training and self.token_share < 1:
            return drop_tokens(tokens, self.num_prefix, self.token_share)
        return tokens

    def embedded(
        self, parts: TokenParts, grid: Grid, dtype: torch.dtype
    ) -> Tokens | None:
        """The same in one pass over the features; None if a module changes more."""
        if not self.positions.only_adds:
            return None
        first = self.positions.at(0)
        table = None if first is None else first.embedding(grid)
        if any(map(is_wrapped, (parts.bias, parts.prefix, table))):
            return None
        rank, (batch, count, _) = None, parts.features.shape
        if self.training and self.token_share < 1:
            order = draw_order(batch, count, parts.features.device)
            rank, count = order.argsort(1), num_kept(count, self.token_share)
        return embed(parts, table, rank, count, dtype)

    def stack(self, tokens: Tokens, norm: nn.Module) -> list[BlockWeights] | None:
        """The weights of all blocks if they can run fused, else None."""
        blocks = self.plain_blocks()
        if not is_fused(tokens) or len(blocks) < len(self.blocks):
            return None
        if not self.positions.is_stem_only or self.downsamples:
            return None
        found = [block_weights(block) for block in blocks]
        stack = [weights for weights in found if weights is not None]
        if len(stack) < len(blocks) or not are_plain([norm]):
            return None
        if self.training and self.checkpointing:
            return None
        if 0 < len(tokens) * max(self.drop_rates()) < FEWEST_DROPPED:
            return None
        return stack if self.is_uniform(norm) else None

    def is_uniform(self, norm: Any) -> bool:
        """Whether heads, scales and epsilons are the same in all plain blocks."""
        first = self.plain_blocks()[0].mixer
        return all(
            block.mixer.num_heads == first.num_heads
            and block.mixer.scale == first.scale
            and block.norm1.eps == block.norm2.eps == norm.eps
            for block in self.plain_blocks()
        )

    def plain_blocks(self) -> list[Block]:
        """The blocks of the residual wiring."""
        return [block for block in self.blocks if type(block) is Block]

    def drop_rates(self) -> list[float]:
        """The drop-path rate of every plain block; 0 in eval mode."""
        paths = [block.drop_path for block in self.plain_blocks()]
        return [path.rate if path.training else 0.0 for path in paths]

    def step(self, layer: int, tokens: Tokens, grid: Grid) -> Tokens:
        """Tokens after one layer."""
        tokens = self.positions.add_to(tokens, layer, grid)
        return self.apply_block(layer, tokens, grid)

    def apply_block(self, layer: int, tokens: Tokens, grid: Grid) -> Tokens:
        """Tokens after a block, recomputed in the backward pass if checkpointing."""
        block = self.blocks[layer]
        bias = self.positions.attention_bias(layer, grid)
        if self.checkpointing and self.training:
            kept: Tokens = checkpoint(block, tokens, grid, bias, use_reentrant=False)
            return kept
        return block(tokens, grid, bias)

    @property
    def works_on_parts(self) -> bool:
        """Whether the blocks can run on a part of an image's tokens."""
        needs_all = any(
            getattr(part, "needs_all_tokens", False) for part in self.modules()
        )
        return self.positions.is_stem_only and not needs_all

    def keep_tokens(self, share: float) -> None:
        """Sets the share of the image's tokens that the blocks see while training."""
        if share < 1 and not self.works_on_parts:
            raise UserError(
                "Token dropping needs positions_at='stem', positions without an "
                "attention bias (not 'relative') and blocks that work on a part of "
                f"the tokens ({NEED_ALL_TOKENS}); or set token_dropping.keep=1."
            )
        self.token_share = share


def drop_tokens(tokens: Tokens, num_prefix: int, share: float) -> Tokens:
    """The prefix tokens and a random share of each image's other tokens."""
    num_tokens = tokens.shape[1] - num_prefix
    count = num_kept(num_tokens, share)
    order = draw_order(len(tokens), num_tokens, tokens.device)
    return keep_rows(tokens, num_prefix, order[:, :count])


def keep_rows(tokens: Tokens, num_prefix: int, kept: Rows) -> Tokens:
    """The prefix tokens and the given ones of each image's other tokens."""
    prefix, image = tokens[:, :num_prefix], tokens[:, num_prefix:]
    return torch.cat([prefix, take_rows(image, kept)], dim=1)


def take_rows(tokens: Tokens, rows: Rows) -> Tokens:
    """Tokens of each image by their numbers, which must all be different."""
    batch, num_tokens, _ = tokens.shape
    first = torch.arange(batch, device=tokens.device)[:, None] * num_tokens
    taken: Tensor = TakeRows.apply(tokens.flatten(0, 1), (first + rows).flatten())
    return taken.unflatten(0, rows.shape)


def num_kept(num_tokens: int, share: float) -> int:
    """How many of an image's tokens are kept."""
    return max(1, round(num_tokens * share))


def draw_order(batch: int, num_tokens: int, device: torch.device) -> Tensor:
    """A random order of each image's tokens."""
    return torch.rand(batch, num_tokens, device=device).argsort(1)


class TakeRows(torch.autograd.Function):
    """Rows of a matrix, all different, so that gradients need no atomic adds."""

    @staticmethod
    def forward(  # type: ignore[no-untyped-def]
        ctx, matrix: Tensor, rows: Tensor
    ) -> Tensor:
        ctx.save_for_backward(rows)
        ctx.num_rows = matrix.shape[0]
        return matrix.index_select(0, rows)

    @staticmethod
    def backward(  # type: ignore[no-untyped-def]
        ctx, grad: Tensor
    ) -> tuple[Tensor, None]:
        (rows,) = ctx.saved_tensors
        full = grad.new_zeros(ctx.num_rows, grad.shape[1])
        return full.index_copy(0, rows, grad), None
