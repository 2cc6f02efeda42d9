"""JPEGs decoded on the GPU, by torchcodec or by a torchvision that still may."""

import base64
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from importlib.metadata import version

import torch
from jaxtyping import UInt8
from torch import Tensor

from t2t.data.headers import image_format, jpeg_header

# torch warns once of memory that it must not write to; decoders only read it.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    torch.frombuffer(b"0", dtype=torch.uint8)

Decoder = Callable[[list[Tensor], str, torch.device], list[Tensor]]

# One grey 8 × 8 block, to try a decoder with.
_SMALLEST_JPEG = base64.b64decode(
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAP//////////////////////////////////////////"
    "////////////////////////////////////////////wAALCAAIAAgBAREA/8QAFAABAAAAAAAA"
    "AAAAAAAAAAAAAP/EABQQAQAAAAAAAAAAAAAAAAAAAAD/2gAIAQEAAD8AP//Z"
)


def decode_jpegs(
    datas: Sequence[bytes | Tensor], channels: int, device: torch.device
) -> dict[int, Tensor]:
    """Upright pixels of those images that nvJPEG reads, by their place in `datas`."""
    found = _gpu_decoder(device)
    if found is None:
        return {}
    _, decoder, is_upright = found
    encoded: dict[int, Tensor] = {}
    orientations: dict[int, int] = {}
    for index, data in enumerate(datas):
        if isinstance(data, Tensor) or not _is_whole_jpeg(data):
            continue
        header = jpeg_header(data)
        # Four components are CMYK, which nvJPEG would read as something else.
        if header is not None and header.components in (1, 3):
            encoded[index] = as_tensor(data)
            orientations[index] = header.orientation
    mode = "RGB" if channels == 3 else "GRAY"
    decoded = _decode_or_halve(encoded, decoder, mode, device)
    if is_upright:
        return decoded
    return {
        index: upright(pixels, orientations[index]) for index, pixels in decoded.items()
    }


def _is_whole_jpeg(data: bytes) -> bool:
    """Whether these bytes begin and end as a JPEG does, with a little after at most."""
    # nvJPEG paints the rest of a truncated file grey and says nothing.
    end = data.find(b"\xff\xd9", max(len(data) - 2048, 2))
    return image_format(data) == "jpeg" and end >= 0


def gpu_decoder_name(device: torch.device | str) -> str | None:
    """Which library decodes JPEGs on this device, or None where the CPU does."""
    device = torch.device(device)
    found = _gpu_decoder(device) if device.type == "cuda" else None
    return found[0] if found else None


def as_tensor(data: bytes) -> UInt8[Tensor, "bytes"]:
    """Encoded bytes as decoders take them."""
    return torch.frombuffer(data, dtype=torch.uint8)


def upright(pixels: Tensor, orientation: int) -> Tensor:
    """Pixels turned as an Exif orientation, 1 to 8, says they were meant."""
    if orientation == 1:
        return pixels
    if orientation >= 5:
        pixels = pixels.transpose(-1, -2)
    flips = {2: (-1,), 3: (-1, -2), 4: (-2,), 6: (-1,), 7: (-1, -2), 8: (-2,)}
    if orientation in flips:
        pixels = pixels.flip(flips[orientation])
    return pixels


def torchvision_decodes() -> bool:
    """Whether torchvision's decoders are not yet deprecated, as they are from 0.29."""
    # From the package's record: importing all of torchvision takes seconds.
    major, minor = (int(part) for part in version("torchvision").split(".")[:2])
    return (major, minor) < (0, 29)


def _decode_or_halve(
    encoded: dict[int, Tensor], decoder: Decoder, mode: str, device: torch.device
) -> dict[int, Tensor]:
    """All that decode: one bad image fails its whole batch, so halves are tried."""
    if not encoded:
        return {}
    try:
        pixels = decoder(list(encoded.values()), mode, device)
    except (RuntimeError, ValueError):
        if len(encoded) == 1:
            return {}
        items = list(encoded.items())
        middle = len(items) // 2
        return {
            **_decode_or_halve(dict(items[:middle]), decoder, mode, device),
            **_decode_or_halve(dict(items[middle:]), decoder, mode, device),
        }
    return dict(zip(encoded, pixels, strict=True))


@cache
def _gpu_decoder(device: torch.device) -> tuple[str, Decoder, bool] | None:
    """Its name, the function, and whether that applies the Exif orientation."""
    candidates: list[tuple[str, Decoder, bool]] = []
    try:
        from torchcodec.decoders import decode_jpeg as by_torchcodec
    except (ImportError, RuntimeError, OSError):  # absent, or built for another torch
        pass
    else:
        candidates.append(
            (
                "torchcodec",
                lambda jpegs, mode, device: by_torchcodec(
                    jpegs, mode=mode, device=device
                ),
                True,
            )
        )
    if torchvision_decodes():
        from torchvision.io import ImageReadMode
        from torchvision.io import decode_jpeg as by_torchvision

        candidates.append(
            (
                "torchvision",
                lambda jpegs, mode, device: by_torchvision(
                    jpegs, ImageReadMode[mode], device=device
                ),
                False,
            )
        )
    for candidate in candidates:
        try:
            candidate[1]([as_tensor(_SMALLEST_JPEG)], "RGB", device)
        except (RuntimeError, ValueError):  # built without nvJPEG
            continue
        return candidate
    return None
