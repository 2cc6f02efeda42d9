"""Decodes images to uint8 pixels with the fastest decoder installed."""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from t2t.data.decoding.damage import DamagedImage
from t2t.data.decoding.headers import (
    DEFAULT_MAX_PIXELS,
    image_format,
    jpeg_header,
    stored_size,
    webp_has_exif,
)
from t2t.data.decoding.muted import MUTED
from t2t.data.decoding.nvjpeg import (
    as_tensor,
    decode_jpegs,
    gpu_decoder_name,
    torchvision_decodes,
)
from t2t.data.decoding.pillow_decoder import (
    check_size,
    decode_with_pillow,
    image_size,
)
from t2t.data.decoding.pixel_budget import BUDGET
from t2t.data.decoding.pixel_tensors import ImagePixels, shrunk, with_channels
from t2t.data.decoding.shrinking import shrink_factor
from t2t.errors import UserError

__all__ = [
    "DecodeOptions",
    "ImagePixels",
    "decode",
    "decode_each",
    "image_size",
    "with_channels",
]

# Channels as torchcodec and torchvision name them.
_MODES = {1: "GRAY", 3: "RGB", 4: "RGB_ALPHA"}

# Bytes of a PNG or WebP that Pillow decodes nearly as fast as others.
_SMALL = 8192
_SMALL_PIXELS = 1 << 16


class DecodeOptions(NamedTuple):
    """The options of `decode`, the same for all images of a source."""

    channels: int = 3
    min_side: int | None = None
    max_pixels: int = DEFAULT_MAX_PIXELS


def decode(
    data: bytes | Tensor,
    *,
    channels: int = 3,
    name: str = "",
    min_side: int | None = None,
    max_pixels: int = DEFAULT_MAX_PIXELS,
) -> ImagePixels:
    """Upright uint8 pixels; with `min_side`, large images are shrunk.

    An image above half a megapixel is shrunk to a half, a quarter and so on, as long as
    its short side keeps at least `min_side` pixels. The memory format may be channels
    last: making it contiguous would take a fifth of the decoding time.
    """
    if channels not in _MODES:
        raise UserError(f"Images decode to 1, 3 or 4 channels, not {channels}.")
    if not isinstance(data, bytes):
        return with_channels(checked_pixels(data, name), channels, name)
    kind = image_format(data)
    size = stored_size(data)
    if size is None:
        return by_pillow(data, channels, name, min_side, max_pixels)
    # Importing the other libraries takes longer than Pillow takes for small sets.
    is_small = len(data) < _SMALL and size[0] * size[1] <= _SMALL_PIXELS
    is_small = is_small and kind in ("png", "webp")
    fast = None if is_small else _fast_decoder()
    check_size(*size, name, max_pixels)
    factor = shrink_factor(*size, min_side)
    if kind == "jpeg":
        header = jpeg_header(data)
        # This decoder cannot shrink, and misses an orientation after other metadata.
        if factor > 1 or (header and header.orientation != 1):
            fast = None
    # torchvision ignores the orientation of a WebP.
    if kind == "webp" and fast and fast[0] == "torchvision" and webp_has_exif(data):
        fast = None
    # Formats with frames, palettes or 16 bits are Pillow's: decoders disagree there.
    if fast and (kind == "jpeg" or (kind in ("png", "webp") and channels == 3)):
        with BUDGET.reserve(size[0] * size[1]):
            try:
                with MUTED:
                    pixels = fast[1](as_tensor(data), _MODES[channels])
            except (RuntimeError, ValueError):
                pass  # Pillow reads more formats, and its errors are clearer.
            else:
                if pixels.dtype == torch.uint8 and pixels.ndim == 3:
                    return shrunk(pixels, factor)
    return by_pillow(data, channels, name, min_side, max_pixels)


def by_pillow(
    data: bytes, channels: int, name: str, min_side: int | None, max_pixels: int
) -> ImagePixels:
    """The pixels that Pillow decodes, as a tensor that shares their memory."""
    pixels = decode_with_pillow(data, channels, name, min_side, max_pixels)
    return torch.from_numpy(pixels)


def checked_pixels(pixels: Any, name: str) -> ImagePixels:
    """The pixels that a source reads; raises an error for anything else."""
    if not isinstance(pixels, Tensor):
        found = type(pixels).__name__
    elif pixels.dtype != torch.uint8 or pixels.ndim != 3 or not pixels.numel():
        found = f"{pixels.dtype} of shape {tuple(pixels.shape)}"
    else:
        return pixels
    raise UserError(
        f"The source reads {name or 'an image'} as {found}; its read(index) must "
        "return the bytes of an image file, or a torch.uint8 tensor of shape "
        "(channels, height, width)."
    )


def decoder_name(device: torch.device | str = "cpu") -> str:
    """The library that decodes JPEGs for this device."""
    on_gpu = gpu_decoder_name(device)
    if on_gpu:
        return on_gpu
    fast = _fast_decoder()
    return fast[0] if fast else "pillow"


def decode_each(
    datas: Sequence[bytes | Tensor],
    *,
    channels: int = 3,
    device: torch.device | str = "cpu",
    pool: Executor | None = None,
    names: Sequence[str] | None = None,
    min_side: int | None = None,
    max_pixels: int = DEFAULT_MAX_PIXELS,
) -> list[Tensor | DamagedImage]:
    """For each image its pixels on the device, or the error that says what is wrong.

    On a CUDA device nvJPEG decodes the JPEGs that it reads; the CPU decodes all else,
    with the threads of `pool`.
    """
    device = torch.device(device)
    results: dict[int, Tensor | DamagedImage] = {}
    if device.type == "cuda":
        found = decode_jpegs(
            datas, channels, device, min_side=min_side, max_pixels=max_pixels
        )
        if found is not None:
            positions, ragged = found
            for number, position in enumerate(positions.tolist()):
                results[position] = ragged.image(number)
    rest = [index for index in range(len(datas)) if index not in results]

    def decode_one(index: int) -> Tensor | DamagedImage:
        name = names[index] if names else f"image {index} of the batch"
        try:
            return decode(
                datas[index],
                channels=channels,
                name=name,
                min_side=min_side,
                max_pixels=max_pixels,
            )
        except DamagedImage as damaged:
            return damaged

    decoded = (map if pool is None else pool.map)(decode_one, rest)
    for index, result in zip(rest, decoded, strict=True):
        results[index] = result.to(device) if isinstance(result, Tensor) else result
    return [results[index] for index in range(len(datas))]


@cache
def _fast_decoder() -> tuple[str, Callable[[Tensor, str], Tensor]] | None:
    """A library's name and its decoder, which gives upright images without the GIL."""
    try:
        from torchcodec.decoders import decode_image as torchcodec_decode
    except (ImportError, RuntimeError, OSError):  # absent, or built for another torch
        pass
    else:

        def by_torchcodec(encoded: Tensor, mode: str) -> Tensor:
            pixels: Tensor = torchcodec_decode(encoded, mode=mode)
            return pixels if pixels.ndim == 3 else pixels[0]  # an animation's first

        return "torchcodec", by_torchcodec
    if not torchvision_decodes():
        return None
    from torchvision.io import ImageReadMode, decode_image

    def by_torchvision(encoded: Tensor, mode: str) -> Tensor:
        read_mode = ImageReadMode[mode]
        pixels: Tensor = decode_image(encoded, read_mode, apply_exif_orientation=True)
        return pixels

    return "torchvision", by_torchvision
