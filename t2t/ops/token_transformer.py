"""The Performer token transformer that follows a soft split, as one operation."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from t2t.ops.availability import runs_matmul_kernels
from t2t.ops.kernels.numbers import TOKEN_DIM
from t2t.ops.performer import performer_attention
from t2t.ops.token_transformer_triton import dropout_numbers
from t2t.ops.window_projection import Windows

Square = Float[Tensor, "dim dim"]
Result = tuple[Float[Tensor, "batch tokens dim"], Float[Tensor, "batch tokens 2"]]


class TokenWeights(NamedTuple):
    """The layers after a soft split; fc1 includes LayerNorm's gain and shift."""

    features: Float[Tensor, "features dim"]
    proj: Square
    fc1: Square
    fc2: Square
    biases: Float[Tensor, "3 dim"]
    """The biases of proj, fc1 and fc2."""


def dropout_masks(seed: Tensor, tokens: int, drop_rate: float) -> tuple[Tensor, Tensor]:
    """Two masks over tokens × channels with mean one: a hash of seed and position."""
    index = torch.arange(tokens * TOKEN_DIM, device=seed.device)
    index = index.view(tokens, TOKEN_DIM)
    bits = (index + seed * 0x9E3779B9) & 0xFFFFFFFF
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B), (16, 1)):
        bits = ((bits ^ (bits >> shift)) * factor) & 0xFFFFFFFF
    below, scale = dropout_numbers(drop_rate)
    return ((bits & 0xFFFF) >= below) * scale, ((bits >> 16) >= below) * scale


def token_transformer_reference(
    windows: Windows,
    weights: TokenWeights,
    seed: Int64[Tensor, ""],
    drop_rate: float,
    eps: float,
) -> Result:
    """Attention and MLP of projected windows: key, query and value.

    Their `centre` and `mean` correct rounding and get no gradient. The second result
    holds the sums of each output token's channels and of their squares, for the next
    split's LayerNorm.
    """
    product, rstd, mean, centre, offset, _ = windows
    features, proj, fc1, fc2, biases = weights
    dtype = product.dtype
    scaled = (product - centre * mean[..., None]) * rstd[..., None] + offset
    key, query, value = scaled.to(dtype).chunk(3, dim=-1)
    proj_bias, fc1_bias, fc2_bias = biases.to(dtype)
    first, second = torch.ones((), device=product.device), None
    if drop_rate:
        masks = dropout_masks(seed, key.shape[0] * key.shape[1], drop_rate)
        first, second = (mask.view(key.shape).to(dtype) for mask in masks)
    mixed = performer_attention(query, key, value, features)
    hidden = value + F.linear(mixed, proj.to(dtype), proj_bias) * first.to(dtype)
    normed = F.layer_norm(hidden, hidden.shape[-1:], eps=eps)
    inner = F.gelu(F.linear(normed, fc1.to(dtype), fc1_bias))
    tail = F.linear(inner, fc2.to(dtype), fc2_bias)
    out = hidden + (tail if second is None else tail * second)
    wide = out if dtype == torch.float64 else out.float()
    return out, torch.stack([wide.sum(-1), wide.square().sum(-1)], dim=-1)


def token_transformer(
    windows: Windows,
    weights: TokenWeights,
    seed: Int64[Tensor, ""],
    drop_rate: float,
    eps: float,
) -> Result:
    """The same by two kernels forward and three backward."""
    if runs_matmul_kernels(windows.product, windows.product.dtype):
        from t2t.ops.operations import fused_token_transformer

        *tensors, _ = windows
        out, moments, *_ = fused_token_transformer(
            *tensors, *weights, seed, drop_rate, eps
        )
        return out, moments
    return token_transformer_reference(windows, weights, seed, drop_rate, eps)
