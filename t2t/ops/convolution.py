"""A strided convolution of few channels, in a form that suits tensor cores."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from t2t.shapes import FeatureMap

Kernel = Float[Tensor, "out_channels channels height width"]


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
    48 channels. The image is padded first, to align windows with squares. With stride 1
    channels of zeros are added, up to the eight that tensor cores need.
    """
    if image.is_cuda and image.shape[1] < 16 and stride > 1:
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
    batch, channels, *size = image.shape
    kernel = weight.shape[-1]
    squares = -(-kernel // stride)
    rows, columns = (
        (length + 2 * padding - kernel) // stride + squares for length in size
    )
    after = [
        count * stride - length - padding
        for count, length in zip((columns, rows), reversed(size), strict=True)
    ]
    image = F.pad(image, (padding, after[0], padding, after[1]))
    image = image.reshape(batch, channels, rows, stride, columns, stride)
    image = image.permute(0, 2, 4, 3, 5, 1).flatten(3)
    missing = squares * stride - kernel
    weight = F.pad(weight, (0, missing, 0, missing))
    weight = weight.reshape(-1, channels, squares, stride, squares, stride)
    weight = weight.permute(0, 2, 4, 3, 5, 1).flatten(3)
    return F.conv2d(image.permute(0, 3, 1, 2), weight.permute(0, 3, 1, 2))
