"""Decodes images with Pillow and NumPy alone, for all formats that Pillow reads."""

import io
import re
from importlib.util import find_spec

import numpy as np
from PIL import Image, UnidentifiedImageError

from t2t.data.decoding.damage import DamagedImage
from t2t.data.decoding.headers import (
    MAX_PIXELS_LIMIT,
    ORIENTATION_TAG,
    image_format,
    jpeg_header,
    stored_size,
)
from t2t.data.decoding.levels import PixelArray, levels_of, pixels_of
from t2t.data.decoding.muted import MUTED
from t2t.data.decoding.pixel_budget import BUDGET
from t2t.data.decoding.shrinking import jpeg_factor, shrink_factor, shrunk
from t2t.errors import machine_error

MODES = {1: "L", 3: "RGB", 4: "RGBA"}
"""Pillow's names of the numbers of channels."""

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


def image_size(data: bytes) -> tuple[int, int]:
    """The height and width in the header of an encoded image; 0 if it is damaged."""
    if size := stored_size(data):
        return size
    try:
        with MUTED, Image.open(io.BytesIO(data), formats=_formats(data)) as image:
            return image.height, image.width
    except Exception:  # of any kind: decoding reports it
        return 0, 0


def check_size(height: int, width: int, name: str, max_pixels: int) -> None:
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


def decode_with_pillow(
    data: bytes, channels: int, name: str, min_side: int | None, max_pixels: int
) -> PixelArray:
    """Upright pixels, shrunk as by `decode`; raises DamagedImage."""
    try:
        with (
            MUTED,
            Image.open(_without_exif(data), formats=_formats(data)) as image,
        ):
            height, width = image.height, image.width
            copies = _COPIES.get(image.format or "", 1)
            check_size(height, width, name, max_pixels // copies)
            factor = shrink_factor(height, width, min_side)
            needed = copies * height * width
            if image.format in ("JPEG", "MPO") and factor > 1:
                by_jpeg = jpeg_factor(factor)
                image.draft(None, (width // by_jpeg, height // by_jpeg))
                factor //= by_jpeg
                needed //= _SHARE_OF_COEFFICIENTS
            with BUDGET.reserve(needed):
                pixels = _pixels_of(image, MODES[channels], factor)
            orientation = _orientation(data, image)
    except DamagedImage:
        raise
    # Pillow's readers raise nearly anything on damaged bytes.
    except Exception as error:
        raise machine_error(name, error) or DamagedImage(
            name, _reason(data, error)
        ) from error
    return _upright(pixels, orientation)


def _pixels_of(image: Image.Image, mode: str, factor: int) -> PixelArray:
    """All pixels, or means over blocks of factor × factor, a few rows at a time."""
    image.load()  # this also turns a TIFF upright
    levels = levels_of(image)
    width, height = image.size
    if factor == 1 and width * height <= _PIXELS_AT_ONCE:
        return pixels_of(image, mode, levels)
    sides = len(mode), -(-height // factor), -(-width // factor)
    pixels = np.empty(sides, dtype=np.uint8)
    rows = max(_PIXELS_AT_ONCE // (width * factor), 1)
    for top in range(0, sides[1], rows):
        bottom = min((top + rows) * factor, height)
        band = pixels_of(image.crop((0, top * factor, width, bottom)), mode, levels)
        pixels[:, top : top + rows] = shrunk(band, factor)
    return pixels


def _upright(pixels: PixelArray, orientation: int) -> PixelArray:
    """Pixels rotated and flipped by their Exif orientation, 1 to 8."""
    if orientation >= 5:
        pixels = pixels.transpose(0, 2, 1)
    flips = {2: (2,), 3: (1, 2), 4: (1,), 6: (2,), 7: (1, 2), 8: (1,)}
    if orientation in flips:
        pixels = np.flip(pixels, flips[orientation]).copy()
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
    # Pillow puts what it has read into some messages, as bytes.
    return re.sub(r"b'([^']*)'", r"\1", str(error))
