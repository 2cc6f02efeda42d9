"""A strided convolution of few channels, in a form that suits tensor cores."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.nn.grad import conv2d_weight

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
    squares, weight = squares.permute(0, 3, 1, 2), weight.permute(0, 3, 1, 2)
    if splits_gradient(squares):
        product: FeatureMap = SplitGradient.apply(squares, weight)
        return product
    return F.conv2d(squares, weight)


MOST_POSITIONS = 1 << 19
"""Windows over which cuDNN sums a gradient at once."""


def splits_gradient(squares: FeatureMap) -> bool:
    """Whether the gradient of the kernel is faster for a part of the batch at a time.

    With eight channels cuDNN's choice for a million windows takes six times as long as
    two halves do one after the other.
    """
    windows = squares.shape[0] * squares.shape[2] * squares.shape[3]
    few = squares.shape[1] == 8 and not squares.requires_grad
    return few and windows > MOST_POSITIONS and not torch.compiler.is_compiling()


class SplitGradient(torch.autograd.Function):
    """A convolution whose kernel's gradient is computed for parts of the batch."""

    @staticmethod
    def forward(  # type: ignore[no-untyped-def]
        ctx, squares: FeatureMap, weight: Kernel
    ) -> FeatureMap:
        ctx.save_for_backward(squares, weight)
        return F.conv2d(squares, weight)

    @staticmethod
    def backward(  # type: ignore[no-untyped-def]
        ctx, grad: FeatureMap
    ) -> tuple[None, Tensor]:
        squares, weight = ctx.saved_tensors
        area = squares.shape[2] * squares.shape[3]
        size = max(1, MOST_POSITIONS // area)
        total = torch.zeros_like(weight, dtype=torch.float32)
        for part, part_grad in zip(squares.split(size), grad.split(size), strict=True):
            total += conv2d_weight(part, weight.shape, part_grad)
        return None, total.to(weight.dtype)


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
