"""A strided convolution of few channels, in a form that suits tensor cores."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from t2t.shapes import FeatureMap

Kernel = Float[Tensor, "out_channels channels height width"]
Squares = Float[Tensor, "batch rows columns depth"]

FEW_CHANNELS = 16
"""Images of fewer are convolved as squares."""


def convolution_reference(
    image: FeatureMap, weight: Kernel, stride: int, padding: int
) -> FeatureMap:
    """torch's convolution."""
    return F.conv2d(image, weight, None, stride, padding)


def convolution(
    image: FeatureMap, weight: Kernel, stride: int, padding: int
) -> FeatureMap:
    """The same after space-to-depth: each stride × stride square becomes one pixel.

    Three input channels leave tensor cores idle; 7 × 7 with stride 4 becomes 2 × 2 over
    48 channels. The image is padded first, to align windows with squares. Channels of
    zeros are added, up to a multiple of the eight that tensor cores need.
    """
    if image.is_cuda and image.shape[1] < FEW_CHANNELS and stride > 1:
        return space_to_depth(image, weight, stride, padding)
    if image.is_cuda and image.shape[1] < 8:
        return with_eight_channels(image, weight, stride, padding)
    return convolution_reference(image, weight, stride, padding)


def with_eight_channels(
    image: FeatureMap, weight: Kernel, stride: int, padding: int
) -> FeatureMap:
    """The convolution with added channels of zeros, channels last in memory."""
    return F.conv2d(
        eight_channels(image), eight_channels(weight), None, stride, padding
    )


def eight_channels(image: FeatureMap) -> FeatureMap:
    """The image or kernel with channels of zeros added, channels last."""
    missing = 8 - image.shape[1]
    padded = F.pad(image, (0, 0, 0, 0, 0, missing))
    return padded.contiguous(memory_format=torch.channels_last)


def space_to_depth(
    image: FeatureMap, weight: Kernel, stride: int, padding: int
) -> FeatureMap:
    """The convolution after space-to-depth, channels last in memory."""
    squares = image_squares(image, weight.shape[-1], stride, padding)
    return convolve_squares(squares, weight, stride)


def convolve_squares(squares: Squares, weight: Kernel, stride: int) -> FeatureMap:
    """The convolution of an image by its squares."""
    channels, kernel = weight.shape[1], weight.shape[-1]
    across = -(-kernel // stride)
    missing = across * stride - kernel
    weight = F.pad(weight, (0, missing, 0, missing))
    weight = weight.reshape(-1, channels, across, stride, across, stride)
    weight = weight.permute(0, 2, 4, 1, 3, 5).flatten(3)
    weight = F.pad(weight, (0, squares.shape[-1] - weight.shape[-1]))
    return F.conv2d(squares.permute(0, 3, 1, 2), weight.permute(0, 3, 1, 2))


def image_squares(image: FeatureMap, kernel: int, stride: int, padding: int) -> Squares:
    """The pixels of each stride × stride square, in the order of the image's axes."""
    batch, channels, *size = image.shape
    rows, columns = (num_squares(each, kernel, stride, padding) for each in size)
    after = [
        count * stride - length - padding
        for count, length in zip((columns, rows), reversed(size), strict=True)
    ]
    image = F.pad(image, (padding, after[0], padding, after[1]))
    image = image.reshape(batch, channels, rows, stride, columns, stride)
    squares = image.permute(0, 2, 4, 1, 3, 5).flatten(3)
    return F.pad(squares, (0, depth_of(channels, stride) - squares.shape[-1]))


def num_squares(length: int, kernel: int, stride: int, padding: int) -> int:
    """Squares along a side, which the windows cover."""
    return (length + 2 * padding - kernel) // stride + -(-kernel // stride)


def depth_of(channels: int, stride: int) -> int:
    """Channels of a square: a multiple of eight."""
    return -(-channels * stride * stride // 8) * 8
