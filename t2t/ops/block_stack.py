"""A stack of pre-norm blocks that computes only what its output needs."""

from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from t2t.ops.attention import attention
from t2t.ops.first_attention import first_attention
from t2t.ops.gelu import linear_gelu
from t2t.ops.kept_samples import draw_kept_indices, kept_counts
from t2t.ops.residual_norm import norm, residual_norm
from t2t.shapes import Tokens

Vector = Float[Tensor, "dim"]
Hidden = Float[Tensor, "hidden"]
Packed = Float[Tensor, "three_times_dim"]


class BlockWeights(NamedTuple):
    """The weights of one block: LayerNorm, attention, LayerNorm, MLP."""

    gain1: Vector
    shift1: Vector
    qkv: Float[Tensor, "three_times_dim dim"]
    qkv_bias: Packed | None
    proj: Float[Tensor, "dim dim"]
    proj_bias: Vector
    gain2: Vector
    shift2: Vector
    fc1: Float[Tensor, "hidden dim"]
    fc1_bias: Hidden
    fc2: Float[Tensor, "dim hidden"]
    fc2_bias: Vector


def block_stack_reference(
    tokens: Tokens,
    blocks: Sequence[BlockWeights],
    final: tuple[Vector, Vector],
    num_heads: int,
    scale: float,
    eps: float,
    num_read: int,
) -> Tokens:
    """The blocks one after another, without drop path, and the last LayerNorm.

    Returns the first `num_read` tokens: those a head reads.
    """
    shape = tokens.shape[-1:]
    for block in blocks:
        normed = F.layer_norm(tokens, shape, block.gain1, block.shift1, eps)
        mixed = attention(linear(normed, block.qkv, block.qkv_bias), num_heads, scale)
        tokens = tokens + linear(mixed, block.proj, block.proj_bias)
        normed = F.layer_norm(tokens, shape, block.gain2, block.shift2, eps)
        hidden = F.gelu(linear(normed, block.fc1, block.fc1_bias))
        tokens = tokens + linear(hidden, block.fc2, block.fc2_bias)
    return F.layer_norm(tokens[:, :num_read], shape, *final, eps)


NUM_CAST_TOGETHER = 4
"""Blocks whose weights are cast by one kernel, and whose gradients are ready together:
several processes sum them up beside the backward pass of the blocks before."""


def block_stack(
    tokens: Tokens,
    blocks: Sequence[BlockWeights],
    final: tuple[Vector, Vector],
    num_heads: int,
    scale: float,
    eps: float,
    num_read: int,
    drop_rates: Sequence[float] | None = None,
    dtype: torch.dtype | None = None,
) -> Tokens:
    """The same, with each residual sum, LayerNorm and GELU in one pass over memory.

    A branch with drop rate p is computed only for the samples that keep it, and scaled
    by about 1 / (1 − p). The last block's MLP is computed only for the tokens that are
    read. The residual stream keeps the dtype of `tokens`; everything else is computed
    in `dtype`, by default the same.
    """
    dtype = tokens.dtype if dtype is None else dtype
    sizes = (num_heads, scale, eps, num_read)
    return run_blocks(tokens, blocks, final, *sizes, drop_rates, dtype)[1]


def one_block(
    tokens: Tokens,
    block: BlockWeights,
    num_heads: int,
    scale: float,
    eps: float,
    drop_rate: float,
    dtype: torch.dtype,
) -> Tokens:
    """One block of a stack by itself: its tokens, before the next norm."""
    # That norm is not read.
    unused = (block.gain1.detach(), block.shift1.detach())
    sizes = (num_heads, scale, eps, tokens.shape[1])
    rates = [drop_rate] if drop_rate > 0 else None
    return run_blocks(tokens, [block], unused, *sizes, rates, dtype)[0]


def run_blocks(
    tokens: Tokens,
    blocks: Sequence[BlockWeights],
    final: tuple[Vector, Vector],
    num_heads: int,
    scale: float,
    eps: float,
    num_read: int,
    drop_rates: Sequence[float] | None,
    dtype: torch.dtype,
) -> tuple[Tokens, Tokens]:
    """The residual stream after the last block, and after the last norm."""
    batch = tokens.shape[0]
    rates = [0.0] * len(blocks) if drop_rates is None else drop_rates
    # Two branches per block, and the last norm, which takes every sample.
    counts = kept_counts(batch, [rate for rate in rates for _ in range(2)] + [0.0])
    indices: list[Tensor | None] = [None] * len(counts)
    if min(counts) < batch:
        drawn = draw_kept_indices(batch, counts, tokens.device)
        indices = [
            None if count == batch else index
            for count, index in zip(counts, drawn.unbind(0), strict=True)
        ]
    # The norm after a block is the next block's first, or the one after the last block.
    norms = [(block.gain1, block.shift1) for block in blocks[1:]] + [final]
    first = blocks[0]
    normed = norm(tokens, first.gain1, first.shift1, indices[0], counts[0], eps, dtype)
    for index, after in enumerate(norms):
        place = index % NUM_CAST_TOGETHER
        if place == 0:
            # Not before: the backward pass comes to operations in the reverse order.
            cast = cast_matrices(blocks[index : index + NUM_CAST_TOGETHER], dtype)
        block, hidden_bias = cast[0][place], cast[1][place]
        branch = 2 * index
        if index < len(blocks) - 1 or num_read >= tokens.shape[1]:
            qkv = linear(normed, block.qkv, block.qkv_bias)
            mixed = attention(qkv, num_heads, scale)
        else:
            mixed = first_attention(
                normed, block.qkv, block.qkv_bias, num_heads, scale, num_read
            )
            tokens = tokens[:, :num_read]
        tokens, normed = residual_norm(
            tokens,
            linear(mixed, block.proj, None),
            block.proj_bias,
            block.gain2,
            block.shift2,
            indices[branch],
            indices[branch + 1],
            counts[branch + 1],
            batch / counts[branch],
            eps,
        )
        hidden = linear_gelu(normed, block.fc1, block.fc1_bias, hidden_bias)
        tokens, normed = residual_norm(
            tokens,
            linear(hidden, block.fc2, None),
            block.fc2_bias,
            *after,
            indices[branch + 1],
            indices[branch + 2],
            counts[branch + 2],
            batch / counts[branch + 1],
            eps,
        )
    return tokens, normed


def cast_matrices(
    blocks: Sequence[BlockWeights], dtype: torch.dtype
) -> tuple[Sequence[BlockWeights], Sequence[Hidden]]:
    """The blocks with what products read in this dtype, all cast by one kernel.

    fc1's biases come beside, as the gradient of those in the blocks is summed in
    float32.
    """
    names = ["qkv", "proj", "fc1", "fc2"]
    if blocks[0].qkv_bias is not None:
        names.append("qkv_bias")
    weights = [getattr(block, name) for block in blocks for name in names]
    biases = [block.fc1_bias.detach() for block in blocks]
    # torch.compile fuses conversions by itself.
    if torch.compiler.is_compiling() or all(each.dtype == dtype for each in weights):
        return blocks, biases
    found = iter(Cast.apply(dtype, *weights, *biases))
    blocks = [
        block._replace(**dict(zip(names, islice(found, len(names)), strict=True)))
        for block in blocks
    ]
    return blocks, [*found]


class Cast(torch.autograd.Function):
    """Casts tensors to another dtype, and their gradients back."""

    @staticmethod
    def forward(  # type: ignore[no-untyped-def]
        ctx, dtype: torch.dtype, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.dtypes = [tensor.dtype for tensor in tensors]
        copies = cast_copies(tensors, [dtype] * len(tensors))
        # Frozen weights stay frozen: blocks before the first trained one then keep no
        # activations.
        learned = ctx.needs_input_grad[1:]
        pairs = zip(copies, learned, strict=True)
        ctx.mark_non_differentiable(*(copy for copy, learns in pairs if not learns))
        return copies

    @staticmethod
    def backward(  # type: ignore[no-untyped-def]
        ctx, *grads: Tensor
    ) -> tuple[Tensor | None, ...]:
        return None, *cast_copies(grads, ctx.dtypes)


def cast_copies(
    tensors: Sequence[Tensor], dtypes: Sequence[torch.dtype]
) -> tuple[Tensor, ...]:
    """Copies of tensors in other dtypes, all written by one kernel."""
    copies = [
        torch.empty_like(tensor, dtype=dtype)
        for tensor, dtype in zip(tensors, dtypes, strict=True)
    ]
    torch._foreach_copy_(copies, list(tensors))
    return tuple(copies)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """A linear layer in the dtype of its input."""
    return F.linear(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))
