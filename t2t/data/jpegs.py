"""Encoded JPEGs gathered for a decoder that takes many at once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from t2t.data.headers import JpegHeader, image_format, jpeg_header

Numbers = Int64[np.ndarray, " images"]


@dataclass(frozen=True)
class Jpegs:
    """JPEGs end to end in one buffer, and what their headers tell."""

    buffer: UInt8[Tensor, " bytes"]
    places: Numbers
    """Where each stood among what was given."""
    starts: Numbers
    lengths: Numbers
    heights: Numbers
    widths: Numbers
    orientations: Numbers

    def __len__(self) -> int:
        return len(self.places)

    def part(self, first: int, last: int) -> "Jpegs":
        """Some of them, sharing the buffer."""
        return Jpegs(
            self.buffer,
            self.places[first:last],
            self.starts[first:last],
            self.lengths[first:last],
            self.heights[first:last],
            self.widths[first:last],
            self.orientations[first:last],
        )

    def encoded(self) -> list[UInt8[Tensor, " bytes"]]:
        """Each by itself, as a view."""
        ends = self.starts + self.lengths
        pairs = zip(self.starts.tolist(), ends.tolist(), strict=True)
        return [self.buffer[start:end] for start, end in pairs]


def gather_jpegs(
    datas: Sequence[bytes | Tensor], accepts: Callable[[bytes], bool], pinned: bool
) -> Jpegs:
    """Whole JPEGs of one or three colours that a decoder accepts, all else left out.

    In page-locked memory the GPU fetches them by itself; from any other, the driver
    copies every image first, one after the other.
    """
    chosen: list[tuple[int, bytes, JpegHeader]] = []
    for place, data in enumerate(datas):
        if isinstance(data, Tensor) or not is_whole_jpeg(data):
            continue
        header = jpeg_header(data)
        # Four components are CMYK, which nvJPEG would read as something else.
        if header and header.components in (1, 3) and accepts(data):
            chosen.append((place, data, header))
    lengths = np.array([len(data) for _, data, _ in chosen], dtype=np.int64)
    starts = np.cumsum(lengths) - lengths
    buffer = torch.empty(int(lengths.sum()), dtype=torch.uint8, pin_memory=pinned)
    target = buffer.numpy()
    for start, (_, data, _) in zip(starts.tolist(), chosen, strict=True):
        target[start : start + len(data)] = np.frombuffer(data, np.uint8)
    return Jpegs(
        buffer,
        np.array([place for place, _, _ in chosen], dtype=np.int64),
        starts,
        lengths,
        np.array([header.height for _, _, header in chosen], dtype=np.int64),
        np.array([header.width for _, _, header in chosen], dtype=np.int64),
        np.array([header.orientation for _, _, header in chosen], dtype=np.int64),
    )


def is_whole_jpeg(data: bytes) -> bool:
    """Whether these bytes begin and end as a JPEG does, with a little after at most."""
    # nvJPEG paints the rest of a truncated file grey and says nothing.
    end = data.rfind(b"\xff\xd9", max(len(data) - 2048, 2))
    return image_format(data) == "jpeg" and end >= 0
