"""The linear layer of normalised windows, as factors that kernels combine."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from t2t.ops.convolution import convolution, convolve_squares
from t2t.ops.image_windows import (
    gathered_windows,
    gathers,
    has_kernel,
    image_windows,
)
from t2t.ops.soft_split import Split, window_statistics
from t2t.shapes import FeatureMap, Tokens

Moments = Float[Tensor, "batch two rows columns"]
PerToken = Float[Tensor, "batch tokens"]
Norm = tuple[Tensor, Tensor, float]


class Windows(NamedTuple):
    """The projection (product − centre·mean)·rstd + offset of every window.

    `soft_split` explains why rows are centred and which rounding `centre` corrects.
    """

    product: Float[Tensor, "batch tokens width"]
    rstd: PerToken
    mean: PerToken
    centre: Float[Tensor, " width"]
    offset: Float[Tensor, " width"]
    grid: torch.Size


def project_windows(
    image: FeatureMap,
    moments: Moments | None,
    split: Split,
    norm: Norm,
    weight: Float[Tensor, "width window"],
    bias: Float[Tensor, " width"] | None,
    dtype: torch.dtype,
) -> Windows:
    """The factors, by one convolution or product in `dtype`, and by box filters.

    `moments` are the sums over the image's channels of values and squares, if an
    earlier step has computed them.
    """
    gain, shift, eps = norm
    scaled = weight * gain
    scaled = scaled - scaled.mean(dim=1, keepdim=True)
    offset = torch.mv(weight, shift)
    rounded = scaled.to(dtype)
    grid = torch.Size([split.length(side) for side in image.shape[-2:]])
    kernel = rounded.unflatten(1, (image.shape[1], split.kernel, split.kernel))
    if moments is None and gathers(image, split, dtype):
        values, mean, rstd = gathered_windows(image, split, eps, dtype)
        missing = values.shape[-1] - rounded.shape[1]
        product = F.linear(values, F.pad(rounded, (0, missing)))
    elif moments is None and has_kernel(image, split, dtype):
        squares, mean, rstd = image_windows(image, split, eps, dtype)
        product = as_tokens(convolve_squares(squares, kernel, split.stride))
    else:
        # The kernels read tokens whose channels are contiguous.
        last = image.to(dtype, memory_format=torch.channels_last)
        product = as_tokens(convolution(last, kernel, split.stride, split.padding))
        mean, rstd = box_statistics(image, moments, split, eps)
    return Windows(
        product,
        rstd.flatten(1),
        mean.detach().flatten(1),
        rounded.detach().float().sum(1),
        offset if bias is None else offset + bias,
        grid,
    )


def as_tokens(projected: FeatureMap) -> Tokens:
    """A map as tokens."""
    return projected.permute(0, 2, 3, 1).flatten(1, 2)


def box_statistics(
    image: FeatureMap, moments: Moments | None, split: Split, eps: float
) -> tuple[Tensor, Tensor]:
    """Mean and reciprocal deviation of every window."""
    if moments is None:
        mean, rstd = window_statistics(image.float(), split, eps)
        return mean.squeeze(1), rstd.squeeze(1)
    mean, mean_square = F.avg_pool2d(
        moments,
        split.kernel,
        split.stride,
        split.padding,
        divisor_override=image.shape[1] * split.kernel**2,
    ).unbind(1)
    # Rounding can make the variance of a flat window slightly negative.
    return mean, torch.rsqrt((mean_square - mean.square()).clamp(min=0) + eps)
