"""Colour operations that map each level of a channel to another, as tables."""

import torch
from jaxtyping import Int32, UInt8
from torch import Tensor

from t2t.data.augment.colour import Values, blend, double_precision, mean_luma
from t2t.shapes import Pixels

Table = UInt8[Tensor, "#batch #channels 256"]
Histogram = Int32[Tensor, "batch channels 256"]


def lookup(images: Pixels, table: Table) -> Pixels:
    """Each pixel replaced by its entry in the table of its sample and channel."""
    table = table.expand(images.shape[0], images.shape[1], 256)
    return table.gather(2, images.flatten(2).long()).view_as(images)


def levels(device: torch.device) -> Int32[Tensor, "256"]:
    """The levels 0 to 255, the table that changes nothing."""
    return torch.arange(256, dtype=torch.int32, device=device)


def histogram(images: Pixels) -> Histogram:
    """How many pixels of each channel have each level."""
    pixels = images.flatten(2).long()
    counts = torch.zeros(
        (*pixels.shape[:2], 256), dtype=torch.int32, device=images.device
    )
    # 32-bit counts, since compilers have fast atomic additions for these.
    one = torch.ones((), dtype=torch.int32, device=images.device)
    return counts.scatter_add(2, pixels, one.expand_as(pixels))


def brightness_table(factor: Values, images: Pixels) -> Table:
    """A blend with black: 0 is black, 1 changes nothing."""
    level = levels(factor.device)
    return blend(torch.zeros_like(level), level, factor[:, None, None])


def contrast_table(factor: Values, images: Pixels) -> Table:
    """A blend with the mean luma of the image."""
    mean = mean_luma(images)[:, None, None]
    return blend(mean, levels(factor.device), factor[:, None, None])


def posterize_table(bits: Values, images: Pixels) -> Table:
    """Keeps this many leading bits of the eight."""
    # Clamped for samples that carry another operation's value.
    dropped = 8 - bits.clamp(0, 8).to(torch.int32)[:, None, None]
    return ((levels(bits.device) >> dropped) << dropped).to(torch.uint8)


def solarize_table(threshold: Values, images: Pixels) -> Table:
    """Inverts the levels from the threshold up."""
    level = levels(threshold.device)
    below = level < threshold[:, None, None]
    return torch.where(below, level, 255 - level).to(torch.uint8)


def solarize_add_table(amount: Values, images: Pixels) -> Table:
    """Adds to the levels below 128."""
    level = levels(amount.device)
    added = (level + amount.to(torch.int32)[:, None, None]).clamp(max=255)
    return torch.where(level < 128, added, level).to(torch.uint8)


def invert_table(values: Values, images: Pixels) -> Table:
    """The negative."""
    return (255 - levels(values.device)).to(torch.uint8)[None, None]


def auto_contrast_table(counts: Histogram) -> Table:
    """Stretches the levels that occur in a channel to the full range."""
    level = levels(counts.device)
    occurs = (counts > 0).to(torch.int32)
    lowest = occurs.argmax(2, keepdim=True)
    highest = 255 - occurs.flip(2).argmax(2, keepdim=True)
    # PIL's rounding often maps the highest level to 254: only float64 does too.
    spread = (highest - lowest).clamp(min=1).to(double_precision(counts.device))
    # A tensor by a tensor: torch rounds a number by a tensor twice.
    scale = torch.full_like(spread, 255.0) / spread
    stretched = (level * scale + (-lowest * scale)).clamp(0, 255)
    return torch.where(highest > lowest, stretched.to(torch.uint8), level).to(
        torch.uint8
    )


def equalize_table(counts: Histogram) -> Table:
    """Equalizes the histogram of a channel."""
    level = levels(counts.device)
    highest = 255 - (counts > 0).to(torch.int32).flip(2).argmax(2, keepdim=True)
    total = counts.sum(2, keepdim=True)
    step = (total - counts.gather(2, highest)) // 255
    before = counts.cumsum(2) - counts
    spread = (step // 2 + before) // step.clamp(min=1)
    # A channel of one level, or with too few pixels, is not changed.
    return torch.where(step > 0, spread.clamp(max=255), level).to(torch.uint8)
