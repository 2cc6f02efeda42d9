"""Colour operations on several channels or on neighbouring pixels.

The results equal PIL's: luma in 16-bit fixed point, blends in float32 and truncated.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int32, UInt8
from torch import Tensor

from t2t.errors import UserError
from t2t.shapes import Pixels

Values = Float[Tensor, " batch"]


def blend(
    base: Int32[Tensor, "*#shape"],
    levels: Int32[Tensor, "*#shape"],
    factor: Float[Tensor, "*#shape"],
) -> UInt8[Tensor, "*shape"]:
    """PIL's `Image.blend`: 0 gives the base, 1 the levels, beyond 1 exaggerates."""
    blended = base + factor * (levels - base)
    return blended.clamp(0, 255).to(torch.uint8)


def check_channels(images: Pixels) -> None:
    """Refuses images that are neither grey nor RGB."""
    if images.shape[1] not in (1, 3):
        raise UserError(
            "Colour augmentation needs images of 1 or 3 channels, not "
            f"{images.shape[1]}: turn off RandAugment, three-augment and colour jitter."
        )


def luma(images: Pixels) -> Int32[Tensor, "batch 1 height width"]:
    """The grey level of each pixel as PIL converts RGB to L."""
    check_channels(images)
    if images.shape[1] == 1:
        return images.to(torch.int32)
    red, green, blue = images.to(torch.int32).split(1, 1)
    return (red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16


def mean_luma(images: Pixels) -> Int32[Tensor, " batch"]:
    """The mean grey level of each image, rounded half up."""
    num = images.shape[2] * images.shape[3]
    total = luma(images).sum((1, 2, 3), dtype=torch.int64)
    return ((2 * total + num) // (2 * num)).to(torch.int32)


def grayscale(images: Pixels) -> Pixels:
    """All channels replaced by the luma."""
    return luma(images).to(torch.uint8).expand_as(images)


def saturation(images: Pixels, factor: Values) -> Pixels:
    """PIL's `ImageEnhance.Color` with a factor per sample: 0 is grey."""
    return blend(luma(images), images.to(torch.int32), factor[:, None, None, None])


def border(
    height: int, width: int, device: torch.device
) -> Bool[Tensor, "height width"]:
    """The outermost pixels."""
    row = torch.arange(height, device=device)[:, None]
    column = torch.arange(width, device=device)
    return (row == 0) | (row == height - 1) | (column == 0) | (column == width - 1)


def smooth(images: Pixels) -> Pixels:
    """PIL's `ImageFilter.SMOOTH`: a 3 × 3 mean, centre weighing 5; borders stay."""
    height, width = images.shape[2:]
    levels = images.to(torch.int32)
    padded = F.pad(levels, (1, 1, 1, 1))
    total = 4 * levels
    for top in range(3):
        for left in range(3):
            total = total + padded[:, :, top : top + height, left : left + width]
    rounded = ((2 * total + 13) // 26).to(torch.uint8)
    return torch.where(border(height, width, images.device), images, rounded)


def sharpness(images: Pixels, factor: Values) -> Pixels:
    """PIL's `ImageEnhance.Sharpness` with a factor per sample: 0 is smoothed."""
    base = smooth(images).to(torch.int32)
    return blend(base, images.to(torch.int32), factor[:, None, None, None])


def double_precision(device: torch.device) -> torch.dtype:
    """Float64, to truncate as PIL does; float32 on Apple's GPUs, which lack it."""
    return torch.float32 if device.type == "mps" else torch.float64


def _hue_and_saturation(images: Pixels, high: Tensor, low: Tensor) -> list[Tensor]:
    """The first two channels of PIL's eight-bit HSV, as whole numbers."""
    spread = (high - low).clamp(min=1).float()
    red, green, blue = (
        ((high - channel) / spread) for channel in images.to(torch.int32).split(1, 1)
    )
    precise = double_precision(images.device)
    is_red, is_green = (images[:, channel, None] == high for channel in (0, 1))
    sector = torch.where(
        is_red,
        (blue - green).to(precise),
        torch.where(
            is_green, 2.0 + red.to(precise) - blue, 4.0 + green.to(precise) - red
        ),
    )
    # Rounded to float32 between the steps, as PIL keeps them.
    turn = torch.frac(sector.float().to(precise) / 6.0 + 1.0).float()
    share = spread / high.clamp(min=1)
    is_grey = high == low
    return [
        torch.where(is_grey, 0.0, (channel.to(precise) * 255.0).floor())
        for channel in (turn, share)
    ]


def hue(images: Pixels, turns: Values) -> Pixels:
    """Torchvision's `adjust_hue` on PIL images: turns of the colour circle, ±0.5."""
    if images.shape[1] == 1:
        return images
    check_channels(images)
    high = images.amax(1, keepdim=True).to(torch.int32)
    low = images.amin(1, keepdim=True).to(torch.int32)
    angle, share = _hue_and_saturation(images, high, low)
    shift = torch.trunc(turns.to(angle.dtype) * 255)[:, None, None, None]
    position = torch.remainder(angle + shift, 256) * 6.0 / 255.0
    index = position.floor()
    fraction, share = (position - index).float(), (share / 255.0).float()
    level, share, fraction = (each.to(angle.dtype) for each in (high, share, fraction))
    lowest, falling, rising = (
        (level * (1.0 - share * part) + 0.5).floor()
        for part in (1.0, fraction, 1.0 - fraction)
    )
    # The level of each channel, by sector of the colour circle.
    order = (
        (level, falling, lowest, lowest, rising, level),
        (rising, level, level, falling, lowest, lowest),
        (lowest, lowest, rising, level, level, falling),
    )
    channels = []
    for choices in order:
        channel = choices[0]
        for number in range(1, 6):
            channel = torch.where(index == number, choices[number], channel)
        channels.append(channel)
    return torch.cat(channels, 1).clamp(0, 255).to(torch.uint8)
