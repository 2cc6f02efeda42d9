"""A stack of pre-norm blocks on a CPU, where nobody asks for gradients."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from t2t.ops.attention import attention_reference
from t2t.ops.block_stack import BlockWeights, Vector
from t2t.ops.packed_linear import linear
from t2t.shapes import Tokens


def inference_stack(
    tokens: Tokens,
    blocks: Sequence[BlockWeights],
    final: tuple[Vector, Vector],
    num_heads: int,
    scale: float,
    eps: float,
    num_read: int,
) -> Tokens:
    """What `block_stack_reference` gives; sums and GELUs overwrite their input.

    The last block's queries and MLP are computed for the tokens that are read alone.
    """
    shape = tokens.shape[-1:]
    for index, block in enumerate(blocks):
        normed = F.layer_norm(tokens, shape, block.gain1, block.shift1, eps)
        if index < len(blocks) - 1 or num_read >= tokens.shape[1]:
            qkv = linear(normed, block.qkv, block.qkv_bias)
            mixed = attention_reference(qkv, num_heads, scale)
        else:
            mixed = attention_of_first(normed, block, num_heads, scale, num_read)
            tokens = tokens[:, :num_read]
        tokens = linear(mixed, block.proj, block.proj_bias).add_(tokens)
        normed = F.layer_norm(tokens, shape, block.gain2, block.shift2, eps)
        hidden = torch.ops.aten.gelu_(linear(normed, block.fc1, block.fc1_bias))
        tokens += linear(hidden, block.fc2, block.fc2_bias)
    return F.layer_norm(tokens[:, :num_read], shape, *final, eps)


def attention_of_first(
    normed: Tokens, block: BlockWeights, num_heads: int, scale: float, num_read: int
) -> Tokens:
    """Attention for the queries of the first few tokens alone."""
    width = len(block.qkv) // 3
    bias = block.qkv_bias
    query_bias, pair_bias = None, None
    if bias is not None:
        query_bias, pair_bias = bias[:width], bias[width:]
    query = linear(normed[:, :num_read], block.qkv[:width], query_bias)
    query = query.unflatten(2, (num_heads, -1)).transpose(1, 2)
    pair = linear(normed, block.qkv[width:], pair_bias)
    key, value = pair.unflatten(2, (2, num_heads, -1)).permute(2, 0, 3, 1, 4)
    mixed = F.scaled_dot_product_attention(query, key, value, scale=scale)
    return mixed.transpose(1, 2).flatten(2)
