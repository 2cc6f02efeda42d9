"""One whole tokens-to-token step with softmax attention in one head."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from t2t.ops.block_stack import linear
from t2t.ops.gelu import linear_gelu
from t2t.ops.performer_step import compute_dtype
from t2t.ops.residual_norm import residual_norm
from t2t.ops.soft_split import Split, soft_split_reference
from t2t.ops.window_projection import project_windows
from t2t.shapes import FeatureMap


class SoftmaxWeights(NamedTuple):
    """The weights of a step."""

    window_gain: Float[Tensor, " window"]
    window_shift: Float[Tensor, " window"]
    qkv: Float[Tensor, "three_times_dim window"]
    proj: Float[Tensor, "dim dim"]
    proj_bias: Float[Tensor, " dim"]
    gain: Float[Tensor, " dim"]
    shift: Float[Tensor, " dim"]
    fc1: Float[Tensor, "dim dim"]
    fc1_bias: Float[Tensor, " dim"]
    fc2: Float[Tensor, "dim dim"]
    fc2_bias: Float[Tensor, " dim"]


def softmax_step_reference(
    image: FeatureMap, split: Split, weights: SoftmaxWeights, eps: float
) -> FeatureMap:
    """Unfold, LayerNorm, linear, attention and MLP, as published."""
    norm = (weights.window_gain, weights.window_shift, eps)
    qkv = soft_split_reference(image, split, norm, weights.qkv, None)
    query, key, value = qkv.flatten(2).transpose(1, 2).chunk(3, dim=-1)
    # As published: the scale is that of the window's width, not of the head's.
    scale = weights.qkv.shape[1] ** -0.5
    mixed = (query @ key.transpose(1, 2) * scale).softmax(dim=-1) @ value
    tokens = value + F.linear(mixed, weights.proj, weights.proj_bias)
    shape = tokens.shape[-1:]
    normed = F.layer_norm(tokens, shape, weights.gain, weights.shift, eps)
    hidden = F.gelu(F.linear(normed, weights.fc1, weights.fc1_bias))
    tokens = tokens + F.linear(hidden, weights.fc2, weights.fc2_bias)
    return tokens.transpose(1, 2).unflatten(2, qkv.shape[-2:])


def softmax_step(
    image: FeatureMap, split: Split, weights: SoftmaxWeights, eps: float
) -> FeatureMap:
    """The same in half precision, without storing windows; norm and GELU by kernels."""
    dtype = compute_dtype(image)
    with torch.autocast(image.device.type, enabled=False):
        windows = project_windows(
            image,
            None,
            split,
            (weights.window_gain, weights.window_shift, eps),
            weights.qkv,
            None,
            dtype,
        )
        wide = windows.product.float()
        centred = wide - windows.centre * windows.mean[..., None]
        qkv = (centred * windows.rstd[..., None] + windows.offset).to(dtype)
        query, key, value = qkv.unsqueeze(1).chunk(3, dim=-1)
        mixed = F.scaled_dot_product_attention(
            query, key, value, scale=weights.qkv.shape[1] ** -0.5
        ).squeeze(1)
        tokens, normed = residual_norm(
            value.squeeze(1),
            linear(mixed, weights.proj, None),
            weights.proj_bias,
            weights.gain,
            weights.shift,
            None,
            None,
            len(image),
            1.0,
            eps,
        )
        hidden = linear_gelu(normed, weights.fc1, weights.fc1_bias)
        tokens = tokens + linear(hidden, weights.fc2, weights.fc2_bias)
    return tokens.unflatten(1, windows.grid).permute(0, 3, 1, 2)
