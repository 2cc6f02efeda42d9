"""From encoded bytes to uint8 pixels, by the fastest decoder that is there."""

import io
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import cache
from importlib.util import find_spec

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from t2t.data.decoding.damage import DamagedImage
from t2t.data.decoding.headers import (
    MOST_PIXELS,
    ORIENTATION_TAG,
    JpegHeader,
    image_format,
    jpeg_header,
)
from t2t.data.decoding.nvjpeg import (
    as_tensor,
    decode_jpegs,
    gpu_decoder_name,
    torchvision_decodes,
    upright,
)
from t2t.errors import UserError, lack

ImagePixels = UInt8[Tensor, "channels height width"]

# Channels as torchcodec and torchvision name them, and as Pillow does.
_MODES = {1: ("GRAY", "L"), 3: ("RGB", "RGB"), 4: ("RGB_ALPHA", "RGBA")}
_HEIC = (b"heic", b"heix", b"hevc", b"mif1", b"msf1")
_LUMA = (0.299, 0.587, 0.114)
# Below half a megapixel most of the time is spent before any pixel is computed.
_PIXELS_WORTH_SCALING = 1 << 19
# Of rows longer than twice this Pillow says that memory is lacking, which it is not.
_LONGEST_SIDE = 1 << 25
# Pillow's own limit refuses photographs of 200 megapixels, which telephones take.
Image.MAX_IMAGE_PIXELS = MOST_PIXELS


def decode(
    data: bytes | Tensor,
    *,
    channels: int = 3,
    name: str = "",
    min_side: int | None = None,
) -> ImagePixels:
    """Upright uint8 pixels; with `min_side` a large JPEG may come out smaller.

    `min_side` lets a JPEG be decoded at a half, quarter or eighth of its size as
    long as its short side stays at least that many pixels. The memory may hold the
    channels of a pixel side by side: laying them apart costs a fifth of decoding.
    """
    if channels not in _MODES:
        raise UserError(f"Images decode to 1, 3 or 4 channels, not {channels}.")
    if isinstance(data, Tensor):
        return with_channels(data, channels, name)
    kind = image_format(data)
    fast = _fast_decoder()
    header = jpeg_header(data) if kind == "jpeg" else None
    if header and min_side and _pays_to_scale(header, min_side, fast is not None):
        return _decode_with_pillow(data, channels, name, min_side)
    if header:
        _check_size(header.width, header.height, name)
    elif kind == "png":  # whose size stands at a fixed place
        _check_size(int.from_bytes(data[16:20]), int.from_bytes(data[20:24]), name)
    if header and header.orientation != 1:
        fast = None  # which misses an orientation that stands behind other metadata
    # Formats with frames, palettes or 16 bits are Pillow's: decoders disagree there.
    if fast and (kind == "jpeg" or (kind in ("png", "webp") and channels == 3)):
        try:
            pixels = fast[1](as_tensor(data), _MODES[channels][0])
        except (RuntimeError, ValueError):
            pass  # Pillow reads more kinds, and its reasons are the clearer ones.
        else:
            if pixels.dtype == torch.uint8 and pixels.ndim == 3:
                return pixels
    return _decode_with_pillow(data, channels, name, None)


def num_pixels(data: bytes) -> int:
    """How many an encoded image says it has; 0 where it does not say."""
    if header := jpeg_header(data):
        return header.width * header.height
    try:
        with Image.open(io.BytesIO(data), formats=_formats(data)) as image:
            return image.width * image.height
    except Exception:  # of any kind: decoding tells what is wrong
        return 0


def _check_size(width: int, height: int, name: str) -> None:
    """Refuses an image that memory may not suffice for, before any is taken."""
    if width * height > MOST_PIXELS or max(width, height) > _LONGEST_SIDE:
        raise DamagedImage(
            name,
            f"its {width:,} × {height:,} pixels are more than the "
            f"{MOST_PIXELS // 10**6} million, or {_LONGEST_SIDE // 10**6} million in a "
            "row, that are decoded; make it smaller first",
        )


def _pays_to_scale(header: JpegHeader, min_side: int, has_fast: bool) -> bool:
    """Whether decoding smaller, which only Pillow can, beats decoding all faster."""
    if min(header.height, header.width) < 2 * min_side:
        return False
    return not has_fast or header.height * header.width >= _PIXELS_WORTH_SCALING


def decoder_name(device: torch.device | str = "cpu") -> str:
    """Which library decodes JPEGs for this device, for a log to say."""
    on_gpu = gpu_decoder_name(device)
    if on_gpu:
        return on_gpu
    fast = _fast_decoder()
    return fast[0] if fast else "pillow"


def with_channels(pixels: ImagePixels, channels: int, name: str = "") -> ImagePixels:
    """Grey repeated, colour made grey, opacity dropped or added, as `channels` asks."""
    given = pixels.shape[0]
    if given == channels:
        return pixels
    if channels == 1 and given in (3, 4):
        weights = torch.tensor(_LUMA, device=pixels.device).view(3, 1, 1)
        return (pixels[:3] * weights).sum(0, keepdim=True).round().to(torch.uint8)
    if given == 1 and channels == 3:
        return pixels.expand(3, -1, -1).contiguous()
    if given == 4 and channels == 3:
        return pixels[:3].contiguous()
    if channels == 4 and given in (1, 3):
        opaque = torch.full_like(pixels[:1], 255)
        return torch.cat([pixels.expand(3, -1, -1), opaque])
    raise UserError(
        f"{name or 'An image'} has {given} channels, which cannot become {channels}."
    )


def decode_each(
    datas: Sequence[bytes | Tensor],
    *,
    channels: int = 3,
    device: torch.device | str = "cpu",
    pool: Executor | None = None,
    names: Sequence[str] | None = None,
) -> list[Tensor | DamagedImage]:
    """Pixels on the device, or what is wrong, for each image.

    On a CUDA device nvJPEG decodes the JPEGs that it reads; all else is decoded by
    threads of the CPU and sent there.
    """
    device = torch.device(device)
    outcomes: dict[int, Tensor | DamagedImage] = {}
    if device.type == "cuda":
        found = decode_jpegs(datas, channels, device)
        if found is not None:
            places, ragged = found
            for number, place in enumerate(places.tolist()):
                outcomes[place] = ragged.image(number)
    rest = [index for index in range(len(datas)) if index not in outcomes]

    def decode_one(index: int) -> Tensor | DamagedImage:
        name = names[index] if names else f"image {index} of the batch"
        try:
            return decode(datas[index], channels=channels, name=name)
        except DamagedImage as damaged:
            return damaged

    decoded = (map if pool is None else pool.map)(decode_one, rest)
    for index, outcome in zip(rest, decoded, strict=True):
        outcomes[index] = outcome.to(device) if isinstance(outcome, Tensor) else outcome
    return [outcomes[index] for index in range(len(datas))]


@cache
def _fast_decoder() -> tuple[str, Callable[[Tensor, str], Tensor]] | None:
    """A library's name and its upright decoder of JPEG, PNG and WebP, without GIL."""
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
    data: bytes, channels: int, name: str, min_side: int | None
) -> ImagePixels:
    try:
        with Image.open(_without_exif(data), formats=_formats(data)) as image:
            if min_side is not None:
                image.draft(None, (min_side, min_side))
            _check_size(*image.size, name)
            pixels = _pixels_of(image, _MODES[channels][1])
            orientation = _orientation(data, image)
    except DamagedImage:
        raise
    # Pillow's readers raise nearly anything on damaged bytes.
    except Exception as error:
        raise lack(name, error) or DamagedImage(name, _reason(data, error)) from error
    return upright(pixels, orientation)


def _without_exif(data: bytes) -> io.BytesIO:
    """A JPEG whose Exif block Pillow passes over: a broken one makes it warn."""
    at = data.find(b"Exif\0\0", 0, 4096) if image_format(data) == "jpeg" else -1
    return io.BytesIO(data if at < 0 else data[:at] + b"skip" + data[at + 4 :])


def _formats(data: bytes) -> tuple[str, ...] | None:
    """The one reader that fits, or all: trying each costs more than a small image."""
    kind = image_format(data)
    return None if kind is None else (kind.upper(),)


def _pixels_of(image: Image.Image, mode: str) -> ImagePixels:
    if image.mode in ("F", "I;16", "I;16L", "I;16B", "I;16N", "I"):
        values = np.asarray(image)
        if image.mode == "F":
            raise ValueError("pixels are floating point: store 8 or 16 bits")
        if values.min() < 0 or values.max() > 65535:
            raise ValueError("pixels have 32 bits: store 8 or 16 bits")
        # 16 bits: 65535 becomes 255 exactly.
        grey = np.rint(values / 257.0).astype(np.uint8)
        return with_channels(torch.from_numpy(grey)[None], len(mode))
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")  # else Pillow warns on the way to RGB
    if image.mode != mode:
        image = image.convert(mode)
    pixels = torch.from_numpy(np.array(image))
    if pixels.ndim == 2:
        return pixels[None]
    return pixels.permute(2, 0, 1)


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
        return f"the {kind.upper()} file is cut short or damaged"
    if isinstance(error, LookupError | ArithmeticError) or not str(error):
        # What was looked for, which says nothing by itself.
        return f"the file is damaged ({type(error).__name__}: {error})"
    return str(error)
