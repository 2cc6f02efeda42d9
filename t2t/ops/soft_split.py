"""Soft split: overlapping windows of a feature map become the next tokens."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from t2t.errors import UserError
from t2t.ops.availability import is_transformed
from t2t.shapes import FeatureMap, Tokens


@dataclass(frozen=True)
class Split:
    """One soft split: window, stride and zero padding in pixels of its input."""

    kernel: int
    stride: int
    padding: int

    def __post_init__(self) -> None:
        """Raises an error for an empty kernel, or a window of padding only."""
        numbers = (self.kernel, self.stride, self.padding)
        if min(numbers[:2]) < 1 or not 0 <= 2 * self.padding <= self.kernel:
            raise UserError(
                f"The soft split {numbers} needs a kernel and a stride of 1 or more "
                "and a padding from 0 to half the kernel."
            )

    def length(self, pixels: int) -> int:
        """The number of windows along a side of this many pixels."""
        return (pixels + 2 * self.padding - self.kernel) // self.stride + 1


def split_grids(
    image_size: Sequence[int], splits: Sequence[Split]
) -> list[tuple[int, int]]:
    """The token grid after each split of an image of (height, width) pixels."""
    grids = []
    rows, columns = image_size
    for split in splits:
        rows, columns = split.length(rows), split.length(columns)
        grids.append((rows, columns))
    if min(map(min, grids)) < 1:
        smallest = smallest_side(splits)
        raise UserError(
            f"Images of {image_size[0]}×{image_size[1]} pixels are too small: the "
            f"splits {[(s.kernel, s.stride, s.padding) for s in splits]} need at least "
            f"{smallest}×{smallest}; enlarge the images or choose splits with smaller "
            "strides."
        )
    return grids


def smallest_side(splits: Sequence[Split]) -> int:
    """The fewest pixels along a side that give one token."""
    side = 1
    for split in reversed(splits):
        side = max(1, (side - 1) * split.stride + split.kernel - 2 * split.padding)
    return side


def soft_split_reference(
    image: FeatureMap,
    split: Split,
    norm: tuple[Tensor, Tensor, float] | None,
    weight: Float[Tensor, "width window"],
    bias: Float[Tensor, " width"] | None,
) -> FeatureMap:
    """Unfold, LayerNorm, linear, as published; the unfolded tokens are stored."""

    def project(windows: Tokens) -> Tokens:
        if norm is not None:
            gain, shift, eps = norm
            windows = F.layer_norm(windows, windows.shape[-1:], gain, shift, eps)
        return F.linear(windows, weight, bias)

    return split_by(project, image, split)


def split_by(
    project: Callable[[Tokens], Tokens], image: FeatureMap, split: Split
) -> FeatureMap:
    """A soft split with any function of the windows, which are stored."""
    (grid,) = split_grids(image.shape[-2:], [split])
    windows = F.unfold(
        image, split.kernel, padding=split.padding, stride=split.stride
    ).transpose(1, 2)
    return project(windows).transpose(1, 2).unflatten(2, grid)


def soft_split(
    image: FeatureMap,
    split: Split,
    norm: tuple[Tensor, Tensor, float] | None,
    weight: Float[Tensor, "width window"],
    bias: Float[Tensor, " width"] | None,
) -> FeatureMap:
    """The same result by one convolution and two box filters, storing no windows.

    With W' = weight·gain (by columns) and u a window,
    Linear(LayerNorm(u)) = rstd(u)·(W'u − rowsum(W')·mean(u)) + (weight·shift + bias).
    """
    channels = image.shape[1]
    kernel_shape = (channels, split.kernel, split.kernel)
    step = {"stride": split.stride, "padding": split.padding}
    if image.device.type == "cpu" and not is_transformed():
        # oneDNN then writes the channels of a token contiguously, as the next layer
        # reads them.
        image = image.contiguous(memory_format=torch.channels_last)
    if norm is None:
        return F.conv2d(image, weight.unflatten(1, kernel_shape), bias, **step)
    gain, shift, eps = norm
    scaled = weight * gain
    # Rows are centred before rounding to the convolution's dtype, which keeps the
    # product small; the sum that rounding leaves is subtracted with the mean.
    scaled = scaled - scaled.mean(dim=1, keepdim=True)
    offset = (weight * shift).sum(1)
    if bias is not None:
        offset = offset + bias
    product = F.conv2d(image, scaled.unflatten(1, kernel_shape), None, **step)
    wide = torch.promote_types(image.dtype, torch.float32)
    mean, rstd = window_statistics(image.to(wide), split, eps)
    centred = product.to(wide)
    if product.dtype != wide:
        leftover = scaled.to(product.dtype).to(wide).sum(1)
        centred = torch.addcmul(centred, leftover[:, None, None], mean, value=-1)
    shifted = torch.addcmul(offset.to(wide)[:, None, None], centred, rstd)
    return shifted.to(product.dtype)


def window_statistics(
    image: FeatureMap, split: Split, eps: float
) -> tuple[FeatureMap, FeatureMap]:
    """Mean and reciprocal deviation of every window over its pixels and channels."""
    # In a flat window far from zero, the mean of the squares less the square of the
    # mean is little but rounding. So the variance is that within the pixels, over
    # their channels, plus that of the pixels' means, each from differences.
    level = image.mean(1, keepdim=True)
    within = (image - level).square().mean(1, keepdim=True)
    mean, within = F.avg_pool2d(
        torch.cat([level, within], dim=1), split.kernel, split.stride, split.padding
    ).split(1, dim=1)
    levels = F.pad(level, (split.padding,) * 4)
    for side in (2, 3):
        levels = levels.unfold(side, split.kernel, split.stride)
    between = (levels - mean[..., None, None]).square().mean((-2, -1))
    return mean, torch.rsqrt(within + between + eps)
