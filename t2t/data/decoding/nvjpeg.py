"""JPEGs decoded on the GPU by nvJPEG, called directly or through a library."""

import io
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from importlib.metadata import version
from typing import NamedTuple, Protocol

import numpy as np
import torch
from jaxtyping import Bool, UInt8
from PIL import Image
from torch import Tensor

from t2t.data.decoding.headers import DEFAULT_MAX_PIXELS
from t2t.data.decoding.jpeg_engine import JpegEngines, has_library
from t2t.data.decoding.jpegs import Jpegs, Numbers, gather_jpegs
from t2t.data.decoding.pixel_budget import PIXELS_IN_FLIGHT
from t2t.data.decoding.pixel_tensors import shrunk, upright
from t2t.data.decoding.shrinking import shrink_factor
from t2t.ops.ragged import Ragged

# torch warns once of memory that it must not write to; decoders only read it.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    torch.frombuffer(b"0", dtype=torch.uint8)

CHANNELS = (1, 3)
"""Channels that nvJPEG decodes to."""
LibraryFunction = Callable[[list[Tensor], str, torch.device], list[Tensor]]


class Decoder(Protocol):
    """Decodes many JPEGs at once, for one thread at a time."""

    is_upright: bool
    """Whether it applies the Exif orientation."""

    def accepts(self, jpegs: Jpegs) -> Bool[np.ndarray, " images"]: ...

    def decode(self, jpegs: Jpegs, channels: int, device: torch.device) -> Ragged: ...


class GpuDecoder(NamedTuple):
    """A decoder's name, and how a thread borrows one."""

    name: str
    borrowed: Callable[[], AbstractContextManager[Decoder]]


class LibraryDecoder:
    """A function of torchcodec or torchvision, which any thread may call."""

    def __init__(self, function: LibraryFunction, is_upright: bool) -> None:
        self.function = function
        self.is_upright = is_upright

    @contextmanager
    def borrowed(self) -> Iterator["LibraryDecoder"]:
        yield self

    def accepts(self, jpegs: Jpegs) -> Bool[np.ndarray, " images"]:
        return np.ones(len(jpegs), dtype=bool)

    def decode(self, jpegs: Jpegs, channels: int, device: torch.device) -> Ragged:
        mode = "RGB" if channels == 3 else "GRAY"
        if device.type == "cuda":
            # Memory that work of the caller's stream still reads may be given to the
            # library, which writes to it on another stream.
            torch.cuda.current_stream(device).synchronize()
        return Ragged.from_images(self.function(jpegs.encoded(), mode, device))


def decode_jpegs(
    datas: Sequence[bytes | Tensor],
    channels: int,
    device: torch.device,
    *,
    min_side: int | None = None,
    max_pixels: int = DEFAULT_MAX_PIXELS,
) -> tuple[Numbers, Ragged] | None:
    """Upright pixels of the images that nvJPEG reads, and their positions."""
    if channels not in CHANNELS or _gpu_decoder(device) is None:
        return None
    jpegs = gather_jpegs(datas, _pinned(device), max_pixels)
    return decode_gathered(jpegs, channels, device, min_side)


def decode_gathered(
    jpegs: Jpegs, channels: int, device: torch.device, min_side: int | None
) -> tuple[Numbers, Ragged] | None:
    """Positions and upright pixels of the JPEGs that nvJPEG reads; None if none.

    Large ones are shrunk as by `decode`, a group at a time.
    """
    found = _gpu_decoder(device)
    if found is None or not len(jpegs):
        return None
    with found.borrowed() as decoder:
        accepted = jpegs.chosen(decoder.accepts(jpegs))
        parts = [
            (jpegs, _shrunk(ragged, min_side))
            for some in _groups(accepted)
            for jpegs, ragged in _decode_or_halve(some, decoder, channels, device)
        ]
    if not parts:
        return None
    positions = np.concatenate([some.positions for some, _ in parts])
    return positions, Ragged.cat([ragged for _, ragged in parts])


def _groups(jpegs: Jpegs) -> Iterator[Jpegs]:
    """Splits images into groups of at most `PIXELS_IN_FLIGHT` pixels or so."""
    before = np.cumsum(jpegs.heights * jpegs.widths) // PIXELS_IN_FLIGHT
    for group in np.unique(before):
        yield jpegs.chosen(before == group)


def _shrunk(ragged: Ragged, min_side: int | None) -> Ragged:
    """Shrinks the large images; returns `ragged` itself if there are none."""
    sizes = zip(ragged.heights.tolist(), ragged.widths.tolist(), strict=True)
    factors = [shrink_factor(*size, min_side) for size in sizes]
    if max(factors) == 1:
        return ragged
    return Ragged.from_images(
        [shrunk(ragged.image(index), factor) for index, factor in enumerate(factors)]
    )


def _pinned(device: torch.device) -> bool:
    return device.type == "cuda"


def gpu_decoder_name(device: torch.device | str) -> str | None:
    """The name of the GPU decoder for JPEGs; None if the CPU decodes."""
    device = torch.device(device)
    found = _gpu_decoder(device) if device.type == "cuda" else None
    return found.name if found else None


def as_tensor(data: bytes) -> UInt8[Tensor, "bytes"]:
    """Encoded bytes as a tensor that shares their memory."""
    return torch.frombuffer(data, dtype=torch.uint8)


def torchvision_decodes() -> bool:
    """Whether torchvision is older than 0.29, which deprecates its decoders."""
    # From the package's metadata: importing torchvision takes seconds.
    major, minor = (int(part) for part in version("torchvision").split(".")[:2])
    return (major, minor) < (0, 29)


def _decode_or_halve(
    jpegs: Jpegs, decoder: Decoder, channels: int, device: torch.device
) -> list[tuple[Jpegs, Ragged]]:
    """All images that can be decoded; a batch that fails is retried in halves."""
    if not len(jpegs):
        return []
    try:
        ragged = decoder.decode(jpegs, channels, device)
    except torch.OutOfMemoryError:  # not an image's fault
        raise
    except (RuntimeError, ValueError):
        if len(jpegs) == 1:
            return []
        middle = len(jpegs) // 2
        halves = jpegs.chosen(slice(middle)), jpegs.chosen(slice(middle, None))
        return [
            part
            for half in halves
            for part in _decode_or_halve(half, decoder, channels, device)
        ]
    if not decoder.is_upright:
        ragged = _turned(ragged, jpegs.orientations)
    return [(jpegs, ragged)]


def _turned(ragged: Ragged, orientations: Numbers) -> Ragged:
    """The images upright, each in the same memory."""
    heights, widths = ragged.heights.clone(), ragged.widths.clone()
    for index in np.flatnonzero(orientations != 1).tolist():
        pixels = upright(ragged.image(index), int(orientations[index]))
        heights[index], widths[index] = pixels.shape[1:]
        if ragged.interleaved[index]:
            pixels = pixels.permute(1, 2, 0)
        start = int(ragged.offsets[index])
        ragged.pixels[start : start + pixels.numel()] = pixels.reshape(-1)
    return Ragged.from_parts(
        ragged.pixels, heights, widths, ragged.interleaved, ragged.channels
    )


@cache
def _gpu_decoder(device: torch.device) -> GpuDecoder | None:
    """The first decoder that decodes test images correctly."""
    for candidate in _candidates(device):
        if _decodes_correctly(candidate, device):
            return candidate
    return None


def _candidates(device: torch.device) -> Iterator[GpuDecoder]:
    if has_library():
        yield GpuDecoder("nvJPEG", JpegEngines(device).borrowed)
    try:
        from torchcodec.decoders import decode_jpeg as by_torchcodec
    except (ImportError, RuntimeError, OSError):  # absent, or built for another torch
        pass
    else:

        def torchcodec(
            jpegs: list[Tensor], mode: str, on: torch.device
        ) -> list[Tensor]:
            pixels: list[Tensor] = by_torchcodec(jpegs, mode=mode, device=on)
            return pixels

        decoder = LibraryDecoder(torchcodec, is_upright=True)
        yield GpuDecoder("nvJPEG through torchcodec", decoder.borrowed)
    if torchvision_decodes():
        from torchvision.io import ImageReadMode
        from torchvision.io import decode_jpeg as by_torchvision

        def torchvision(
            jpegs: list[Tensor], mode: str, on: torch.device
        ) -> list[Tensor]:
            pixels: list[Tensor] = by_torchvision(jpegs, ImageReadMode[mode], device=on)
            return pixels

        decoder = LibraryDecoder(torchvision, is_upright=False)
        yield GpuDecoder("nvJPEG through torchvision", decoder.borrowed)


def _decodes_correctly(candidate: GpuDecoder, device: torch.device) -> bool:
    """Whether it decodes two images of known pixels, one wide and one tall."""
    ramp = np.linspace(0, 255, 96 * 144).reshape(96, 144).astype(np.uint8)
    wide = np.stack([ramp, ramp[:, ::-1], ramp[::-1] // 2], axis=2)
    pictures = [np.ascontiguousarray(each) for each in (wide, wide.swapaxes(0, 1))]
    datas = []
    for picture in pictures:
        file = io.BytesIO()
        Image.fromarray(picture).save(file, "JPEG", quality=95)
        datas.append(file.getvalue())
    try:
        with candidate.borrowed() as decoder:
            jpegs = gather_jpegs(datas, _pinned(device))
            if not decoder.accepts(jpegs).all():
                return False
            ragged = decoder.decode(jpegs, 3, device)
    except (RuntimeError, ValueError):  # no such hardware, or built without nvJPEG
        return False
    for index, picture in enumerate(pictures):
        found = ragged.image(index).cpu().permute(1, 2, 0).numpy().astype(int)
        if found.shape != picture.shape or np.abs(found - picture).mean() > 4:
            return False
    return True
