"""The backbone: a sequence of blocks with positions."""

from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from t2t.errors import UserError, choose
from t2t.models.blocks import Block
from t2t.models.config import ModelConfig
from t2t.models.encoder_positions import EncoderPositions
from t2t.models.fusion import (
    MIN_DROPPED,
    are_plain,
    block_weights,
    is_fused,
    is_wrapped,
)
from t2t.models.layers import SelfAttention
from t2t.models.token_dropping import (
    TokenNumbers,
    draw_ranks,
    drop_tokens,
    keep_rows,
    num_kept,
)
from t2t.models.token_grid import Grid
from t2t.models.wirings import WIRINGS, Downsample
from t2t.ops.block_stack import BlockWeights, block_stack
from t2t.ops.embedding import TokenParts, embed
from t2t.ops.performer_step import compute_dtype
from t2t.shapes import Tokens

NEED_ALL_TOKENS = (
    "not mixer='linformer', 'axial' or 'conv_attention', mlp='depthwise' or "
    "wiring='pyramid'"
)
"""Choices that set `needs_all_tokens`, in the words of an error."""


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

    def set_residual_dtype(self, dtype: torch.dtype | None) -> None:
        """Sets the precision of the residual stream in fused blocks."""
        self.residual_dtype = dtype
        for block in self.plain_blocks():
            block.residual_dtype = dtype

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
        """The soft split after the last block of a stage."""
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
        kept: TokenNumbers | None = None,
    ) -> Tokens:
        """Normalised tokens after the last block: all, or those that are read.

        The fused path computes the first `num_read` only. With `kept`, the blocks see
        only these of each image's tokens, in that order, after the prefix tokens.
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
            tokens = self.enter(tokens.cat(), grid, kept) if fused is None else fused
        else:
            tokens = self.enter(tokens, grid, kept)
        if stack is None:
            for layer in range(len(self.blocks)):
                run = self.run_layer if layer > 0 else self.apply_block
                tokens = run(layer, tokens, grid)
                tokens, grid = self.next_stage(layer, tokens, grid)
            # All: FSDP's hooks for the backward pass do not hold on a view of some.
            normed: Tokens = norm(tokens)
            return normed
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

    def enter(self, tokens: Tokens, grid: Grid, kept: TokenNumbers | None) -> Tokens:
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
            rank = draw_ranks(batch, count, parts.features.device)
            count = num_kept(count, self.token_share)
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
        if 0 < len(tokens) * max(self.drop_rates()) < MIN_DROPPED:
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
        """Tokens after one layer, to run the layers one by one."""
        return self.run_layer(layer, tokens, grid)

    def run_layer(self, layer: int, tokens: Tokens, grid: Grid) -> Tokens:
        """The same within the encoder."""
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
