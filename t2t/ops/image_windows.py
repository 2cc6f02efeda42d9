"""An image as squares of pixels with the statistics of its windows, in one pass."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from t2t.ops.attention_tiles import next_power_of_2
from t2t.ops.availability import runs_kernels
from t2t.ops.convolution import FEW_CHANNELS, depth_of, image_squares, num_squares
from t2t.ops.soft_split import Split
from t2t.shapes import FeatureMap

PerToken = Float[Tensor, "batch tokens"]

STRIDES = (1, 2, 4, 8)
COLUMNS = 64
"""Squares that a program computes."""
BLOCK = 512
"""Windows that a program computes."""


class ImageWindows(NamedTuple):
    """The input of a convolution, and mean and 1/deviation of each of its windows."""

    squares: Float[Tensor, "batch rows columns channels"]
    mean: PerToken
    rstd: PerToken


def image_windows_reference(
    image: FeatureMap, split: Split, eps: float, dtype: torch.dtype
) -> ImageWindows:
    """By space-to-depth and box filters; `dtype` is that of the squares."""
    squares = image_squares(image.to(dtype), split.kernel, split.stride, split.padding)
    wide = image.to(torch.promote_types(image.dtype, torch.float32))
    moments = torch.stack([wide.mean(1), wide.square().mean(1)], dim=1)
    numbers = (split.kernel, split.stride, split.padding)
    mean, mean_square = F.avg_pool2d(moments, *numbers).flatten(2).unbind(1)
    variance = (mean_square - mean.square()).clamp(min=0)
    return ImageWindows(squares, mean, torch.rsqrt(variance + eps))


def image_windows(
    image: FeatureMap, split: Split, eps: float, dtype: torch.dtype
) -> ImageWindows:
    """The same by two kernels; `has_kernel` must be true."""
    from t2t.ops.operations import fused_image_windows

    numbers = (split.kernel, split.stride, split.padding)
    return ImageWindows(*fused_image_windows(image, *numbers, eps, dtype))


def has_kernel(image: FeatureMap, split: Split, dtype: torch.dtype) -> bool:
    """Whether the kernels take this image: they give it no gradient."""
    return (
        runs_kernels(image, dtype)
        and not image.requires_grad
        and image.dtype in (torch.float32, torch.bfloat16, torch.float16)
        and image.shape[1] < FEW_CHANNELS
        and split.stride in STRIDES
        and image.shape[1] * split.stride**2 <= 1024
    )


def fused_forward(
    image: Tensor,
    kernel: int,
    stride: int,
    padding: int,
    eps: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """Squares, means and reciprocal deviations."""
    from t2t.ops.kernels.image_windows import image_squares, window_moments
    from t2t.ops.kernels.launch import launch

    batch, channels, height, width = image.shape
    across = -(-kernel // stride)
    rest = kernel - (across - 1) * stride
    rows, columns = (
        num_squares(each, kernel, stride, padding) for each in (height, width)
    )
    depth = depth_of(channels, stride)
    squares = image.new_empty(batch, rows, columns, depth, dtype=dtype)
    num_sums = 2 if rest == stride else 8
    single = torch.float32
    sums = image.new_empty(batch, num_sums, rows, columns, dtype=single)
    lines = next_power_of_2(depth // stride)
    tile = min(COLUMNS, next_power_of_2(columns))
    launch(image_squares)[(batch * rows, -(-columns // tile))](
        *(image, squares, sums, *image.stride(), height, width, rows, columns),
        CHANNELS=channels,
        OUT_CHANNELS=depth,
        STRIDE=stride,
        PADDING=padding,
        REST=rest,
        LINES=lines,
        COLUMNS=tile,
        num_warps=max(1, min(4, lines * tile * stride // 1024)),
    )
    grid_rows, grid_columns = rows - across + 1, columns - across + 1
    tokens = grid_rows * grid_columns
    mean = image.new_empty(batch, tokens, dtype=single)
    rstd = torch.empty_like(mean)
    launch(window_moments)[(-(-batch * tokens // BLOCK),)](
        *(sums, mean, rstd, batch * tokens, rows, columns, grid_columns, tokens),
        SQUARES=across,
        HAS_REST=rest < stride,
        SIZE=channels * kernel * kernel,
        EPS=eps,
        BLOCK=BLOCK,
        num_warps=4,
    )
    return squares, mean, rstd
