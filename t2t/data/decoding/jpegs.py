"""Encoded JPEGs gathered for a decoder that takes many at once."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Int64, UInt8
from torch import Tensor

from t2t.data.decoding.headers import (
    DEFAULT_MAX_PIXELS,
    JpegHeader,
    image_format,
    jpeg_header,
)

Numbers = Int64[np.ndarray, " images"]


@dataclass(frozen=True)
class Jpegs:
    """JPEGs end to end in one buffer, and the numbers in their headers."""

    buffer: UInt8[Tensor, " bytes"]
    positions: Numbers
    """Position of each among the given images."""
    starts: Numbers
    lengths: Numbers
    heights: Numbers
    widths: Numbers
    orientations: Numbers

    def __len__(self) -> int:
        return len(self.positions)

    def chosen(self, which: Numbers | Bool[np.ndarray, " images"] | slice) -> "Jpegs":
        """Some of them, sharing the buffer."""
        return Jpegs(
            self.buffer,
            self.positions[which],
            self.starts[which],
            self.lengths[which],
            self.heights[which],
            self.widths[which],
            self.orientations[which],
        )

    def encoded(self) -> list[UInt8[Tensor, " bytes"]]:
        """Each by itself, as a view."""
        ends = self.starts + self.lengths
        pairs = zip(self.starts.tolist(), ends.tolist(), strict=True)
        return [self.buffer[start:end] for start, end in pairs]


def gather_jpegs(
    datas: Sequence[bytes | Tensor], pinned: bool, max_pixels: int = DEFAULT_MAX_PIXELS
) -> Jpegs:
    """Complete grey or RGB JPEGs, copied to one buffer; others are left out.

    From pinned memory the GPU copies by itself; from other memory the driver first
    copies every image, one after the other.
    """
    chosen: list[tuple[int, bytes, JpegHeader]] = []
    for position, data in enumerate(datas):
        header = None if isinstance(data, Tensor) else header_for_gpu(data, max_pixels)
        if header is not None:
            assert isinstance(data, bytes)
            chosen.append((position, data, header))
    lengths = np.array([len(data) for _, data, _ in chosen], dtype=np.int64)
    starts = np.cumsum(lengths) - lengths
    buffer = torch.empty(int(lengths.sum()), dtype=torch.uint8, pin_memory=pinned)
    target = buffer.numpy()
    for start, (_, data, _) in zip(starts.tolist(), chosen, strict=True):
        target[start : start + len(data)] = np.frombuffer(data, np.uint8)
    return Jpegs(
        buffer,
        np.array([position for position, _, _ in chosen], dtype=np.int64),
        starts,
        lengths,
        np.array([header.height for _, _, header in chosen], dtype=np.int64),
        np.array([header.width for _, _, header in chosen], dtype=np.int64),
        np.array([header.orientation for _, _, header in chosen], dtype=np.int64),
    )


def header_for_gpu(
    data: bytes, max_pixels: int = DEFAULT_MAX_PIXELS
) -> JpegHeader | None:
    """The header of a JPEG that nvJPEG may decode; None for all else."""
    # nvJPEG decodes the rest of a truncated file as grey without an error, so the end
    # marker must be there, with few bytes after it.
    end = data.rfind(b"\xff\xd9", max(len(data) - 2048, 2))
    if end < 0 or image_format(data) != "jpeg":
        return None
    header = jpeg_header(data)
    # A height of 0 means that a later marker has it, and no memory would be reserved
    # for the pixels; four components are CMYK, which nvJPEG would decode wrongly.
    if header and header.components in (1, 3):
        return header if 0 < header.height * header.width <= max_pixels else None
    return None
