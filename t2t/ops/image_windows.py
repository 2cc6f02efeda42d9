"""An image as the input of a matrix product, with the statistics of its windows.

Small windows are gathered whole; of large ones, which would take much memory, only
squares of pixels, for a convolution.
"""

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
"""Windows whose statistics a program computes."""
GATHERED = 64
"""Windows that a program gathers."""
MAX_VALUES = 64
"""A window of at most so many values is gathered: 27 in the CIFAR models."""


class ImageWindows(NamedTuple):
    """The input of a convolution, and mean and 1/deviation of each of its windows."""

    squares: Float[Tensor, "batch rows columns channels"]
    mean: PerToken
    rstd: PerToken


class GatheredWindows(NamedTuple):
    """The values of every window, zeros behind them, and their mean and 1/deviation."""

    values: Float[Tensor, "batch tokens width"]
    mean: PerToken
    rstd: PerToken


def gathered_windows_reference(
    image: FeatureMap, split: Split, eps: float, dtype: torch.dtype
) -> GatheredWindows:
    """By unfolding; `dtype` is that of the values."""
    wide = image.to(torch.promote_types(image.dtype, torch.float32))
    windows = F.unfold(
        wide, split.kernel, padding=split.padding, stride=split.stride
    ).mT
    variance, mean = torch.var_mean(windows, dim=-1, correction=0)
    size = windows.shape[-1]
    values = F.pad(windows.to(dtype), (0, width_of(size) - size))
    return GatheredWindows(values, mean, torch.rsqrt(variance + eps))


def gathered_windows(
    image: FeatureMap, split: Split, eps: float, dtype: torch.dtype
) -> GatheredWindows:
    """The same by one kernel; `gathers` must be true."""
    from t2t.ops.operations import fused_gathered_windows

    numbers = (split.kernel, split.stride, split.padding)
    return GatheredWindows(*fused_gathered_windows(image, *numbers, eps, dtype))


def gathers(image: FeatureMap, split: Split, dtype: torch.dtype) -> bool:
    """Whether the kernel gathers the windows of this image: it gives no gradient."""
    return takes_image(image, dtype) and image.shape[1] * split.kernel**2 <= MAX_VALUES


def width_of(size: int) -> int:
    """The values of a gathered window, zeros included."""
    return max(16, next_power_of_2(size))


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
    """Whether the kernels take this image as squares: they give it no gradient."""
    return (
        takes_image(image, dtype)
        and image.shape[1] < FEW_CHANNELS
        and split.stride in STRIDES
        and image.shape[1] * split.stride**2 <= 1024
    )


def takes_image(image: FeatureMap, dtype: torch.dtype) -> bool:
    """Whether the kernels can read an image and compute in a dtype."""
    return (
        runs_kernels(image, dtype)
        and not image.requires_grad
        and image.dtype in (torch.float32, torch.bfloat16, torch.float16)
    )


def gather_forward(
    image: Tensor,
    kernel: int,
    stride: int,
    padding: int,
    eps: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """Values, means and reciprocal deviations."""
    from t2t.ops.kernels.image_windows import gather_windows
    from t2t.ops.kernels.launch import launch

    batch, channels, height, width = image.shape
    split = Split(kernel, stride, padding)
    rows, columns = split.length(height), split.length(width)
    total, size = batch * rows * columns, channels * kernel * kernel
    values = image.new_empty(batch, rows * columns, width_of(size), dtype=dtype)
    mean = image.new_empty(batch, rows * columns, dtype=torch.float32)
    rstd = torch.empty_like(mean)
    launch(gather_windows)[(-(-total // GATHERED),)](
        *(image, values, mean, rstd, *image.stride(), height, width, rows, columns),
        total,
        KERNEL=kernel,
        STRIDE=stride,
        PADDING=padding,
        SIZE=size,
        WIDTH=values.shape[-1],
        EPS=eps,
        BLOCK=GATHERED,
        num_warps=4,
    )
    return values, mean, rstd


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
