"""Format, size and orientation of an encoded image, read without decoding it."""

import struct
from typing import NamedTuple

SUFFIXES = {
    "jpeg": ".jpg",
    "png": ".png",
    "webp": ".webp",
    "gif": ".gif",
    "bmp": ".bmp",
    "tiff": ".tif",
    "avif": ".avif",
}
COMMON_SUFFIXES = (
    *(".jpg", ".png", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".avif"),
    *(".jpe", ".jfif", ".ppm", ".pgm", ".pbm", ".pnm"),
)
"""Suffixes of image files, the most common first."""
IMAGE_SUFFIXES = frozenset(COMMON_SUFFIXES)
UNREAD_SUFFIXES = frozenset(
    (
        *(".heic", ".heif", ".hif", ".jp2", ".j2k", ".jpx", ".jxl", ".svg", ".psd"),
        *(".tga", ".exr", ".hdr", ".dng", ".cr2", ".cr3", ".nef", ".arw", ".orf"),
        *(".raf", ".rw2"),
    )
)
"""Suffixes of image formats that are not supported."""

OTHER_SUFFIX = ".img"
"""The suffix, in a pack, of an image in another format."""

ORIENTATION_TAG = 0x0112

DEFAULT_MAX_PIXELS = 1 << 28
"""Default of --max-pixels; phones take pictures of 200 million pixels."""

MAX_PIXELS_LIMIT = 1 << 29
"""The largest --max-pixels; Pillow's own limit is set to it."""


class JpegHeader(NamedTuple):
    """Stored size, colour components, and the Exif orientation, 1 to 8."""

    height: int
    width: int
    components: int
    orientation: int


def image_format(data: bytes) -> str | None:
    """A key of SUFFIXES, found by the bytes, not by the file's name."""
    if data[:3] == b"\xff\xd8\xff":
        return "jpeg"
    if data[:8] == b"\x89PNG\r\n\x1a\n":
        return "png"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "webp"
    if data[:6] in (b"GIF87a", b"GIF89a"):
        return "gif"
    if data[:2] == b"BM":
        return "bmp"
    if data[:4] in (b"II*\0", b"MM\0*"):
        return "tiff"
    if data[4:8] == b"ftyp" and data[8:12] in (b"avif", b"avis"):
        return "avif"
    return None


def stored_size(data: bytes) -> tuple[int, int] | None:
    """Height and width in the header of a JPEG, PNG or WebP; None for other formats."""
    kind = image_format(data)
    if kind == "jpeg":
        header = jpeg_header(data)
        return header and (header.height, header.width)
    if kind == "png" and len(data) >= 24:  # at a fixed offset
        return int.from_bytes(data[20:24]), int.from_bytes(data[16:20])
    if kind == "webp" and len(data) >= 30:
        return _webp_size(data)
    return None


def _webp_size(data: bytes) -> tuple[int, int] | None:
    """Height and width in the first chunk: lossy, lossless or extended."""
    if data[12:16] == b"VP8 ":
        width, height = struct.unpack("<HH", data[26:30])
        return height & 0x3FFF, width & 0x3FFF
    if data[12:16] == b"VP8L":
        bits = int.from_bytes(data[21:25], "little")
        return (bits >> 14 & 0x3FFF) + 1, (bits & 0x3FFF) + 1
    if data[12:16] == b"VP8X":
        width, height = (int.from_bytes(data[i : i + 3], "little") for i in (24, 27))
        return height + 1, width + 1
    return None


def webp_has_exif(data: bytes) -> bool:
    """Whether an extended WebP declares Exif metadata, such as an orientation."""
    return data[12:16] == b"VP8X" and bool(data[20] & 0x08)


def jpeg_header(data: bytes) -> JpegHeader | None:
    """Read up to the frame header; None where there is none to find."""
    orientation = 1
    at = 2
    while at + 4 <= len(data):
        if data[at] != 0xFF:
            return None
        marker = data[at + 1]
        if marker == 0xFF:  # padding before a marker
            at += 1
            continue
        if marker == 0x01 or 0xD0 <= marker <= 0xD8:  # markers without a length
            at += 2
            continue
        if marker in (0xD9, 0xDA):  # the end, or pixels before any frame header
            return None
        length = int.from_bytes(data[at + 2 : at + 4], "big")
        # C4, C8 and CC are tables in the middle of the frame headers' numbers.
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            if at + 10 > len(data):
                return None
            height, width, components = struct.unpack(">HHB", data[at + 5 : at + 10])
            return JpegHeader(height, width, components, orientation)
        if marker == 0xE1 and data[at + 4 : at + 10] == b"Exif\0\0":
            orientation = _exif_orientation(data[at + 10 : at + 2 + length])
        at += 2 + length
    return None


def _exif_orientation(tiff: bytes) -> int:
    """The orientation of an Exif block; 1 (upright) if none can be read."""
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(tiff[:4])
    if order is None or len(tiff) < 8:
        return 1
    (directory,) = struct.unpack_from(order + "I", tiff, 4)
    if directory + 2 > len(tiff):
        return 1
    (num_entries,) = struct.unpack_from(order + "H", tiff, directory)
    for entry in range(directory + 2, directory + 2 + 12 * num_entries, 12):
        if entry + 12 > len(tiff):
            return 1
        tag, kind, _, value = struct.unpack_from(order + "HHIH", tiff, entry)
        if tag == ORIENTATION_TAG:
            return value if kind == 3 and 1 <= value <= 8 else 1
    return 1
