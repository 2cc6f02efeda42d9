"""Images of different sizes in one buffer."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int64, UInt8
from torch import Tensor


@dataclass(frozen=True)
class Ragged:
    """Images of different sizes end to end in one buffer.

    Each is planar, C×H×W, or interleaved, H×W×C, as its decoder returned it. Only the
    pixels may be on a device: sizes stay on the host, where crops are drawn.
    """

    pixels: UInt8[Tensor, " pixels"]
    offsets: Int64[Tensor, " batch"]
    heights: Int64[Tensor, " batch"]
    widths: Int64[Tensor, " batch"]
    interleaved: Bool[Tensor, " batch"]
    channels: int

    def __len__(self) -> int:
        return len(self.offsets)

    @classmethod
    def from_images(
        cls, images: Sequence[UInt8[Tensor, "channels height width"]]
    ) -> "Ragged":
        """Copies images of one device and one number of channels into one buffer."""
        flats = [flat_pixels(image) for image in images]
        return cls.from_parts(
            torch.cat([flat for flat, _ in flats]),
            torch.tensor([image.shape[1] for image in images]),
            torch.tensor([image.shape[2] for image in images]),
            torch.tensor([interleaved for _, interleaved in flats]),
            images[0].shape[0],
        )

    @classmethod
    def from_parts(
        cls,
        pixels: UInt8[Tensor, " pixels"],
        heights: Int64[Tensor, " batch"],
        widths: Int64[Tensor, " batch"],
        interleaved: Bool[Tensor, " batch"],
        channels: int,
    ) -> "Ragged":
        """Wraps a buffer whose images follow each other without gaps."""
        ends = torch.cumsum(heights * widths * channels, 0)
        if int(ends[-1]) != len(pixels):
            raise ValueError(
                f"The buffer has {len(pixels)} pixels, but the sizes need {ends[-1]}."
            )
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), ends[:-1]])
        return cls(pixels, offsets, heights, widths, interleaved, channels)

    @classmethod
    def cat(cls, parts: Sequence["Ragged"]) -> "Ragged":
        """The images of all parts in one buffer; a single part is returned as it is."""
        if len(parts) == 1:
            return parts[0]
        total = sum(len(part.pixels) for part in parts)
        pixels = empty_rounded_up(total, parts[0].pixels.device)
        return cls.from_parts(
            torch.cat([part.pixels for part in parts], out=pixels),
            torch.cat([part.heights for part in parts]),
            torch.cat([part.widths for part in parts]),
            torch.cat([part.interleaved for part in parts]),
            parts[0].channels,
        )

    def select(self, indices: Int64[Tensor, " chosen"]) -> "Ragged":
        """The chosen images in that order, sharing the buffer."""
        return Ragged(
            self.pixels,
            self.offsets[indices],
            self.heights[indices],
            self.widths[indices],
            self.interleaved[indices],
            self.channels,
        )

    def image(self, index: int) -> UInt8[Tensor, "channels height width"]:
        """One image as a view."""
        height, width = int(self.heights[index]), int(self.widths[index])
        start = int(self.offsets[index])
        flat = self.pixels[start : start + self.channels * height * width]
        if self.interleaved[index]:
            return flat.view(height, width, self.channels).permute(2, 0, 1)
        return flat.view(self.channels, height, width)


def empty_rounded_up(num_bytes: int, device: torch.device) -> UInt8[Tensor, " bytes"]:
    """An empty buffer whose memory is rounded up, by an eighth at most, to few sizes.

    Batches differ a little in size. With exact sizes the caching allocator would often
    find no free block for a larger batch, and ask the driver for a new one.
    """
    step = 1 << max(num_bytes.bit_length() - 4, 9)
    size = -(-num_bytes // step) * step
    return torch.empty(size, dtype=torch.uint8, device=device)[:num_bytes]


def flat_pixels(
    image: UInt8[Tensor, "channels height width"],
) -> tuple[UInt8[Tensor, " pixels"], bool]:
    """Pixels in memory order, and whether that is interleaved."""
    if not image.is_contiguous():
        rows = image.permute(1, 2, 0)
        if rows.is_contiguous():
            return rows.reshape(-1), True
    return image.reshape(-1), False
