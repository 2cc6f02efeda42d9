"""One whole tokens-to-token step: soft split, LayerNorm, Performer and MLP."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from t2t.ops.availability import runs_matmul_kernels
from t2t.ops.kernels.numbers import TOKEN_DIM
from t2t.ops.soft_split import Split, soft_split_reference
from t2t.ops.token_transformer import (
    TokenWeights,
    token_transformer,
    token_transformer_reference,
)
from t2t.ops.window_projection import Moments, Windows, project_windows
from t2t.shapes import FeatureMap

MAX_FEATURES = 32
"""More features do not fit into shared memory."""


class StepWeights(NamedTuple):
    """The weights of a step, and its frozen features."""

    window_gain: Tensor
    window_shift: Tensor
    kqv: Float[Tensor, "three_times_dim window"]
    kqv_bias: Float[Tensor, " three_times_dim"]
    features: Float[Tensor, "features dim"]
    proj: Float[Tensor, "dim dim"]
    proj_bias: Float[Tensor, " dim"]
    gain: Float[Tensor, " dim"]
    shift: Float[Tensor, " dim"]
    fc1: Float[Tensor, "dim dim"]
    fc1_bias: Float[Tensor, " dim"]
    fc2: Float[Tensor, "dim dim"]
    fc2_bias: Float[Tensor, " dim"]


def performer_step_reference(
    image: FeatureMap,
    moments: Moments | None,
    split: Split,
    weights: StepWeights,
    seed: Int64[Tensor, ""],
    drop_rate: float,
    eps: float,
) -> tuple[FeatureMap, Moments]:
    """Unfold, LayerNorm, linear, then the token transformer, as published.

    `moments` are the sums over the image's channels of values and squares, if an
    earlier step has computed them; the second result holds those of the first.
    """
    norm = (weights.window_gain, weights.window_shift, eps)
    kqv = soft_split_reference(image, split, norm, weights.kqv, weights.kqv_bias)
    tokens = kqv.flatten(2).transpose(1, 2)
    zeros = tokens.new_zeros(tokens.shape[-1])
    flat = tokens.new_zeros(tokens.shape[:2])
    windows = Windows(tokens, flat + 1, flat, zeros, zeros, kqv.shape[-2:])
    result = token_transformer_reference(windows, folded(weights), seed, drop_rate, eps)
    return as_maps(result, windows.grid)


def performer_step(
    image: FeatureMap,
    moments: Moments | None,
    split: Split,
    weights: StepWeights,
    seed: Int64[Tensor, ""],
    drop_rate: float,
    eps: float,
) -> tuple[FeatureMap, Moments]:
    """The same in half precision: one convolution and two passes over the tokens."""
    dtype = compute_dtype(image)
    with torch.autocast(image.device.type, enabled=False):
        windows = project_windows(
            image,
            moments,
            split,
            (weights.window_gain, weights.window_shift, eps),
            weights.kqv,
            weights.kqv_bias,
            dtype,
        )
        result = token_transformer(windows, folded(weights), seed, drop_rate, eps)
    return as_maps(result, windows.grid)


def folded(weights: StepWeights) -> TokenWeights:
    """The layers after the split, LayerNorm's gain and shift folded into fc1."""
    fc1_bias = torch.addmv(weights.fc1_bias, weights.fc1, weights.shift)
    biases = torch.stack([weights.proj_bias, fc1_bias, weights.fc2_bias])
    fc1 = weights.fc1 * weights.gain
    return TokenWeights(weights.features, weights.proj, fc1, weights.fc2, biases)


def as_maps(
    result: tuple[Tensor, Tensor], grid: torch.Size
) -> tuple[FeatureMap, Moments]:
    """Tokens and moments as maps, channels last in memory."""
    tokens, moments = (part.unflatten(1, grid).permute(0, 3, 1, 2) for part in result)
    return tokens, moments


def compute_dtype(image: Tensor) -> torch.dtype:
    """The dtype of products: autocast's, or the image's own."""
    device = image.device.type
    if torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return image.dtype


def has_kernel(image: FeatureMap, weights: StepWeights) -> bool:
    """Whether the kernels compute a step of this width on this device."""
    num_features = weights.features.shape[0]
    return (
        runs_matmul_kernels(image, compute_dtype(image))
        and weights.proj.shape == (TOKEN_DIM, TOKEN_DIM)
        and weights.proj.dtype == torch.float32
        and 16 <= num_features <= MAX_FEATURES
        and num_features & (num_features - 1) == 0
    )
