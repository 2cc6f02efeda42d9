"""Decodes images to uint8 pixels with the fastest decoder installed."""

import io
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import cache
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from t2t.data.decoding.damage import DamagedImage
from t2t.data.decoding.headers import (
    DEFAULT_MAX_PIXELS,
    MAX_PIXELS_LIMIT,
    ORIENTATION_TAG,
    image_format,
    jpeg_header,
    stored_size,
    webp_has_exif,
)
from t2t.data.decoding.levels import (
    ImagePixels,
    levels_of,
    pixels_of,
    with_channels,
)
from t2t.data.decoding.muted import MUTED
from t2t.data.decoding.nvjpeg import (
    as_tensor,
    decode_jpegs,
    gpu_decoder_name,
    torchvision_decodes,
    upright,
)
from t2t.data.decoding.pixel_budget import BUDGET
from t2t.data.decoding.shrinking import jpeg_factor, shrink_factor, shrunk
from t2t.errors import UserError, machine_error

__all__ = ["DecodeOptions", "ImagePixels", "decode", "decode_each", "with_channels"]

# Channels as torchcodec and torchvision name them, and as Pillow does.
_MODES = {1: ("GRAY", "L"), 3: ("RGB", "RGB"), 4: ("RGB_ALPHA", "RGBA")}
_HEIC = (b"heic", b"heix", b"hevc", b"mif1", b"msf1")
# Pixels converted at a time, since conversions need several copies.
_PIXELS_AT_ONCE = 1 << 24
# A JPEG decoded at a smaller size needs at most this fraction of the memory of the
# full size (1/4): progressive files keep all coefficients.
_SHARE_OF_COEFFICIENTS = 4
# Pillow keeps several copies of these, with more bytes per pixel.
_COPIES = {"WEBP": 3, "AVIF": 3}
# For rows longer than twice this, Pillow wrongly reports a lack of memory.
_LONGEST_SIDE = 1 << 25
# Pillow's own limit refuses photographs of 200 megapixels, which phones take.
Image.MAX_IMAGE_PIXELS = MAX_PIXELS_LIMIT


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
        return _decode_with_pillow(data, channels, name, min_side, max_pixels)
    # Importing the other libraries takes longer than Pillow takes for small sets.
    is_small = len(data) < _SMALL and size[0] * size[1] <= _SMALL_PIXELS
    is_small = is_small and kind in ("png", "webp")
    fast = None if is_small else _fast_decoder()
    _check_size(*size, name, max_pixels)
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
                    pixels = fast[1](as_tensor(data), _MODES[channels][0])
            except (RuntimeError, ValueError):
                pass  # Pillow reads more formats, and its errors are clearer.
            else:
                if pixels.dtype == torch.uint8 and pixels.ndim == 3:
                    return shrunk(pixels, factor)
    return _decode_with_pillow(data, channels, name, min_side, max_pixels)


def checked_pixels(pixels: Any, name: str) -> ImagePixels:
    """The pixels that a source reads; raises an error for anything else."""
    if not isinstance(pixels, Tensor):
        found = type(pixels).__name__
    elif pixels.dtype != torch.uint8 or pixels.ndim != 3:
        found = f"{pixels.dtype} of shape {tuple(pixels.shape)}"
    else:
        return pixels
    raise UserError(
        f"The source reads {name or 'an image'} as {found}; its read(index) must "
        "return the bytes of an image file, or a torch.uint8 tensor of shape "
        "(channels, height, width)."
    )


def image_size(data: bytes) -> tuple[int, int]:
    """The height and width in the header of an encoded image; 0 if it is damaged."""
    if size := stored_size(data):
        return size
    try:
        with MUTED, Image.open(io.BytesIO(data), formats=_formats(data)) as image:
            return image.height, image.width
    except Exception:  # of any kind: decoding reports it
        return 0, 0


def _check_size(height: int, width: int, name: str, max_pixels: int) -> None:
    """Refuses an image that may need too much memory, before any is allocated."""
    if max(width, height) > _LONGEST_SIDE:
        raise DamagedImage(
            name,
            f"its {width:,} × {height:,} pixels are more than {_LONGEST_SIDE // 10**6} "
            "million in a row; make it smaller first",
        )
    if width * height > max_pixels:
        raise DamagedImage(
            name,
            f"its {width:,} × {height:,} pixels exceed the limit of {max_pixels:,}; "
            "make it smaller first, or raise --max-pixels",
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


def _decode_with_pillow(
    data: bytes, channels: int, name: str, min_side: int | None, max_pixels: int
) -> ImagePixels:
    try:
        with (
            MUTED,
            Image.open(_without_exif(data), formats=_formats(data)) as image,
        ):
            height, width = image.height, image.width
            copies = _COPIES.get(image.format or "", 1)
            _check_size(height, width, name, max_pixels // copies)
            factor = shrink_factor(height, width, min_side)
            needed = copies * height * width
            if image.format in ("JPEG", "MPO") and factor > 1:
                by_jpeg = jpeg_factor(factor)
                image.draft(None, (width // by_jpeg, height // by_jpeg))
                factor //= by_jpeg
                needed //= _SHARE_OF_COEFFICIENTS
            with BUDGET.reserve(needed):
                pixels = _pixels_of(image, _MODES[channels][1], factor)
            orientation = _orientation(data, image)
    except DamagedImage:
        raise
    # Pillow's readers raise nearly anything on damaged bytes.
    except Exception as error:
        raise machine_error(name, error) or DamagedImage(
            name, _reason(data, error)
        ) from error
    return upright(pixels, orientation)


def _pixels_of(image: Image.Image, mode: str, factor: int) -> ImagePixels:
    """All pixels, or means over blocks of factor × factor, a few rows at a time."""
    image.load()  # this also turns a TIFF upright
    levels = levels_of(image)
    width, height = image.size
    if factor == 1 and width * height <= _PIXELS_AT_ONCE:
        return pixels_of(image, mode, levels)
    sides = len(mode), -(-height // factor), -(-width // factor)
    pixels = torch.empty(sides, dtype=torch.uint8)
    rows = max(_PIXELS_AT_ONCE // (width * factor), 1)
    for top in range(0, sides[1], rows):
        bottom = min((top + rows) * factor, height)
        band = pixels_of(image.crop((0, top * factor, width, bottom)), mode, levels)
        # NumPy copies in this thread; torch would start others.
        pixels.numpy()[:, top : top + rows] = shrunk(band, factor).numpy()
    return pixels


def _without_exif(data: bytes) -> io.BytesIO:
    """A JPEG whose Exif block Pillow skips: a broken one makes it warn."""
    at = data.find(b"Exif\0\0", 0, 4096) if image_format(data) == "jpeg" else -1
    return io.BytesIO(data if at < 0 else data[:at] + b"skip" + data[at + 4 :])


def _formats(data: bytes) -> tuple[str, ...] | None:
    """The one Pillow reader to try, or None for all, which is slow."""
    kind = image_format(data)
    return None if kind is None else (kind.upper(),)


def _orientation(data: bytes, image: Image.Image) -> int:
    if image.format in ("JPEG", "MPO"):
        header = jpeg_header(data)
        return header.orientation if header else 1
    if image.format in ("PNG", "WEBP", "AVIF"):
        value = image.getexif().get(ORIENTATION_TAG, 1)
        return value if value in range(1, 9) else 1
    return 1  # TIFF is turned by Pillow as it loads


def _reason(data: bytes, error: Exception) -> str:
    if not data:
        return "the file is empty"
    kind = image_format(data)
    if kind == "avif" and find_spec("PIL._avif") is None:  # as before Pillow 11.3
        return "this Pillow reads no AVIF: install a newer one, or convert the image"
    if isinstance(error, Image.DecompressionBombError):
        return "it has more pixels than are decoded; make it smaller first"
    if isinstance(error, UnidentifiedImageError):
        if data[4:8] == b"ftyp" and data[8:12] in _HEIC:
            return "it is a HEIC image, which is not read; convert it to JPEG or PNG"
        if kind is None:
            return "not an image that can be read"
        return (
            f"the {kind.upper()} file is truncated, damaged, or of an unsupported kind"
        )
    if isinstance(error, LookupError | ArithmeticError) or not str(error):
        # The text alone, such as a missing key, says nothing.
        return f"the file is damaged ({type(error).__name__}: {error})"
    return str(error)
