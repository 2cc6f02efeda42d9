"""The backbone: blocks one after another, and where positions enter."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from t2t.errors import UserError, choose
from t2t.models.blocks import Block, DenseBlock, DenseTransitionBlock
from t2t.models.config import ModelConfig
from t2t.models.fusion import FEWEST_DROPPED, are_plain, block_weights, is_fused
from t2t.models.layers import SequenceProjection
from t2t.models.positions import Grid, PlacedPositions
from t2t.ops.block_stack import BlockWeights, block_stack
from t2t.ops.performer_step import compute_dtype
from t2t.shapes import Tokens


class Encoder(nn.Module):
    """Blocks one after another, with positions where they belong."""

    def __init__(self, grid: Grid, config: ModelConfig) -> None:
        super().__init__()
        plan = choose("wiring", config.wiring, WIRINGS)(config)
        rates = torch.linspace(0, config.drop_path, len(plan), device="cpu").tolist()
        self.positions = PlacedPositions(
            config.positions,
            config.positions_at,
            [dim for _, dim in plan],
            config.num_prefix_tokens,
            grid,
            config.num_heads,
        )
        blocks = [
            block(dim, grid, rate, config)
            for (block, dim), rate in zip(plan, rates, strict=True)
        ]
        self.blocks = nn.ModuleList(blocks)
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
        """Removes all blocks behind the first few."""
        self.blocks = self.blocks[:num_blocks]
        self.out_dims = self.out_dims[:num_blocks]

    def forward(
        self, tokens: Tokens, grid: Grid, norm: nn.Module, num_read: int | None = None
    ) -> Tokens:
        """Tokens behind the last block and the norm: the first few, or all."""
        stack = self.stack(tokens, norm)
        tokens = self.positions.add_to(tokens, 0, grid)
        if self.training and self.token_share < 1:
            tokens = some_tokens(tokens, self.num_prefix, self.token_share)
        if stack is None:
            for layer in range(len(self.blocks)):
                step = self.step if layer > 0 else self.apply_block
                tokens = step(layer, tokens, grid)
            return norm(tokens)[:, :num_read]
        assert isinstance(norm, nn.LayerNorm)
        first, rates = self.plain_blocks()[0], self.drop_rates()
        final = (norm.weight, norm.bias)
        heads = (first.mixer.num_heads, first.mixer.scale)
        num_read = tokens.shape[1] if num_read is None else num_read
        dtype = compute_dtype(tokens)
        return block_stack(
            tokens.to(self.residual_dtype or dtype),
            stack,
            final,
            *heads,
            norm.eps,
            num_read,
            rates if max(rates) > 0 else None,
            dtype,
        )

    def stack(self, tokens: Tokens, norm: nn.Module) -> list[BlockWeights] | None:
        """The weights of all blocks where they can run fused, else None."""
        blocks = self.plain_blocks()
        if not is_fused(tokens) or len(blocks) < len(self.blocks):
            return None
        if not self.positions.only_at_the_stem:
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
        """The blocks that are neither dense nor somebody else's."""
        return [block for block in self.blocks if type(block) is Block]

    def drop_rates(self) -> list[float]:
        """The stochastic depth of every plain block, none where it is switched off."""
        paths = [block.drop_path for block in self.plain_blocks()]
        return [path.rate if path.training else 0.0 for path in paths]

    def step(self, layer: int, tokens: Tokens, grid: Grid) -> Tokens:
        """Tokens after one layer."""
        tokens = self.positions.add_to(tokens, layer, grid)
        return self.apply_block(layer, tokens, grid)

    def apply_block(self, layer: int, tokens: Tokens, grid: Grid) -> Tokens:
        """Tokens after a block, which is computed twice where memory is short."""
        block = self.blocks[layer]
        bias = self.positions.attention_bias(layer, grid)
        if self.checkpointing and self.training:
            kept: Tokens = checkpoint(block, tokens, grid, bias, use_reentrant=False)
            return kept
        return block(tokens, grid, bias)

    def keep_tokens(self, share: float) -> None:
        """While training, the blocks see only a share of the image's tokens."""
        mixes = any(isinstance(part, SequenceProjection) for part in self.modules())
        if share < 1 and (mixes or not self.positions.only_at_the_stem):
            raise UserError(
                "Tokens can only be dropped where blocks do not ask for their places: "
                "with positions_at='stem', positions other than 'relative' and a mixer "
                "other than 'linformer'; or set token_dropping.keep=1."
            )
        self.token_share = share


def some_tokens(tokens: Tokens, num_prefix: int, share: float) -> Tokens:
    """The prefix, and a share of each image's other tokens, drawn at random."""
    prefix, image = tokens[:, :num_prefix], tokens[:, num_prefix:]
    batch, num_tokens, _ = image.shape
    count = max(1, round(num_tokens * share))
    order = torch.rand(batch, num_tokens, device=tokens.device).argsort(1)[:, :count]
    first = torch.arange(batch, device=tokens.device)[:, None] * num_tokens
    kept = TakeRows.apply(image.flatten(0, 1), (first + order).flatten())
    return torch.cat([prefix, kept.unflatten(0, (batch, count))], dim=1)


class TakeRows(torch.autograd.Function):
    """Different rows of a matrix, whose gradients are put back without adding."""

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
        whole = grad.new_zeros(ctx.num_rows, grad.shape[1])
        return whole.index_copy(0, rows, grad), None


Plan = list[tuple[type[Block], int]]


def residual_wiring(config: ModelConfig) -> Plan:
    """Blocks of one width."""
    return [(Block, config.dim)] * config.depth


def dense_wiring(config: ModelConfig) -> Plan:
    """Blocks that each widen the tokens, and halve them at the end of a stage."""
    if sum(config.dense_stages) != config.depth or config.growth < 1:
        raise UserError(
            f"wiring='dense' needs growth ≥ 1 and dense_stages that sum to depth; "
            f"given growth={config.growth}, dense_stages={config.dense_stages}, "
            f"depth={config.depth}."
        )
    plan: Plan = []
    dim = config.dim
    for stage, depth in enumerate(config.dense_stages, start=1):
        for layer in range(1, depth + 1):
            ends = layer == depth and stage < len(config.dense_stages)
            plan.append((DenseTransitionBlock if ends else DenseBlock, dim))
            dim += config.growth
        if stage < len(config.dense_stages):
            dim //= 2
    return plan


WIRINGS: dict[str, Callable[[ModelConfig], Plan]] = {
    "residual": residual_wiring,
    "dense": dense_wiring,
}
