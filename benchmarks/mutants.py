"""Small images and weight files, and damaged copies of them.

The copy of number `n` depends on `n` only.
"""

import io
import json
import random
import re
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import t2t

Original = tuple[str, bytes]
"""A suffix and the bytes of a file."""

HUGE = (0, 1, 16_383, 20_000, 65_500, 2**24 - 1, 2**31 - 1)
ODD: tuple[Any, ...] = (
    *(None, -1, 0, 5, 10**6, 10**7, 2**63, 0.5, 1e308, "", "big", "🐈", [], [[]]),
    *({}, [1, "a"], {"a": 5}, True),
)


def original_images() -> list[Original]:
    """One image of every supported format."""
    rng = np.random.default_rng(0)
    small = Image.fromarray(rng.integers(0, 256, (6, 8, 3), dtype=np.uint8))
    image = small.resize((64, 48), Image.Resampling.BICUBIC)
    grey = np.array(image.convert("L"))
    exif = Image.Exif()
    exif[0x0112] = 6
    kinds: list[tuple[Image.Image, str, dict[str, Any]]] = [
        (image, "JPEG", {"exif": exif}),
        (image, "JPEG", {"progressive": True}),
        (image.convert("CMYK"), "JPEG", {}),
        (image.convert("L"), "JPEG", {}),
        (image, "PNG", {"icc_profile": bytes(200)}),
        (image.convert("RGBA"), "PNG", {"exif": exif}),
        (image.quantize(16), "PNG", {"transparency": 3}),
        (Image.fromarray(grey.astype(np.uint16) * 257), "PNG", {}),
        (image, "WEBP", {}),
        (image, "WEBP", {"lossless": True, "exif": exif}),
        (image, "WEBP", {"save_all": True, "append_images": [image.rotate(90)]}),
        (image, "GIF", {"save_all": True, "append_images": [image.rotate(90)]}),
        (image, "BMP", {}),
        (image, "TIFF", {}),
        (image, "TIFF", {"compression": "tiff_lzw"}),
        (image, "TIFF", {"compression": "jpeg"}),
        (Image.fromarray(grey.astype(np.int32)), "TIFF", {}),
        (Image.fromarray((grey / 255).astype(np.float32)), "TIFF", {}),
        (image, "PPM", {}),
        (image.convert("1"), "PPM", {}),
    ]
    if "AVIF" in Image.SAVE:
        kinds.append((image, "AVIF", {}))
    originals = []
    for picture, kind, options in kinds:
        file = io.BytesIO()
        picture.save(file, kind, **options)
        suffix = {"JPEG": ".jpg", "TIFF": ".tif"}.get(kind, f".{kind.lower()}")
        originals.append((suffix, file.getvalue()))
    return originals


def original_weights(work: Path) -> list[Original]:
    """One small model as our own file, as zipped and as legacy pickles."""
    torch.manual_seed(0)
    options = {"dim": 16, "depth": 1, "num_heads": 1, "token_dim": 8}
    model = t2t.create_model("t2t_vit_7_32", num_classes=2, image_size=16, **options)
    path = work / "whole.safetensors"
    names = ("ant", "bee")
    extra = {"image_size": [16, 16], "channels": 3, "crop_fraction": 0.9}
    extra |= {"mean": [0.5, 0.5, 0.5], "std": [0.2, 0.2, 0.2]}
    t2t.save(model, path, name="t2t_vit_7_32", class_names=names, extra=extra)
    originals = [(".safetensors", path.read_bytes())]
    originals *= 6  # half of all are our own files
    # Pickles do not name their model: a model of the zoo is identified by its shapes.
    state = t2t.create_model("t2t_vit_7_32", num_classes=2).state_dict()
    for content in (state, {"state_dict_ema": state, "epoch": 3}, {"net": state}):
        for zipped in (True, False):
            file = io.BytesIO()
            torch.save(content, file, _use_new_zipfile_serialization=zipped)
            originals.append((".pth", file.getvalue()))
    return originals


def mutated_image(originals: list[Original], number: int) -> Original:
    """A damaged copy of one of the images; every tenth has another's suffix."""
    rng = random.Random(number)
    suffix, data = originals[number % len(originals)]
    how = rng.choice((*DAMAGES, huge_size, huge_size))
    data = how(data, rng)
    if number % 10 == 9:
        suffix = rng.choice(originals)[0]
    return suffix, data


def mutated_weights(originals: list[Original], number: int) -> Original:
    """A damaged copy of one of the files; half of our own have a damaged header."""
    rng = random.Random(number)
    suffix, data = originals[number % len(originals)]
    how: Callable[[bytes, random.Random], bytes] = rng.choice(DAMAGES)
    if suffix == ".safetensors" and rng.random() < 0.6:
        how = odd_header
    if number % 10 == 9:
        suffix = rng.choice((".pth", ".safetensors", ".pt", ".bin"))
    return suffix, how(data, rng)


def cut(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data))]


def flip(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((1, 3, 20))):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def flip_first(data: bytes, rng: random.Random) -> bytes:
    """Flips bits at the start, in the header."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 3))):
        changed[rng.randrange(min(len(changed), 200))] = rng.randrange(256)
    return bytes(changed)


def clear(data: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(len(data))
    end = min(start + rng.choice((8, 64, len(data))), len(data))
    return data[:start] + bytes(end - start) + data[end:]


def repeat(data: bytes, rng: random.Random) -> bytes:
    start, end = sorted(rng.randrange(len(data)) for _ in range(2))
    return data[:end] + data[start:]


def empty(data: bytes, rng: random.Random) -> bytes:
    return rng.choice((b"", b"\0", bytes(len(data)), rng.randbytes(300)))


DAMAGES = (cut, cut, flip, flip, flip_first, clear, repeat, empty)


def huge_size(data: bytes, rng: random.Random) -> bytes:
    """Replaces the width and height in the header, 64 × 48."""
    width, height = rng.choice(HUGE), rng.choice(HUGE)
    if data[:4] == b"\x89PNG":
        header = data[12:16] + struct.pack(">II", width, height) + data[24:29]
        return data[:12] + header + struct.pack(">I", zlib.crc32(header)) + data[33:]
    if data[:1] == b"P":
        return re.sub(rb"64\s48", f"{width} {height}".encode(), data, count=1)
    for form in (">HH", "<HH", "<II"):
        for sides in ((64, 48), (48, 64)):
            most = 65_535 if "H" in form else 2**31 - 1
            given = struct.pack(form, min(width, most), min(height, most))
            if (stored := struct.pack(form, *sides)) in data:
                return data.replace(stored, given, 1)
    # TIFF, whose sides are values of two entries, and WebP's, one less in 24 bits.
    for entry in (
        b"\0\1\4\0\1\0\0\0\x40\0",
        b"\0\1\3\0\1\0\0\0\x40\0",
        b"\x3f\0\0\x2f\0\0",
    ):
        if entry in data:
            number = struct.pack("<I", min(width, 2**24 - 1))
            return data.replace(entry, entry[:-2] + number[:2], 1)
    return flip_first(data, rng)


def odd_header(data: bytes, rng: random.Random) -> bytes:
    """Our own file with a changed JSON header, or another header length."""
    length = int.from_bytes(data[:8], "little")
    if rng.random() < 0.15:
        return (
            rng.choice((0, 1, 2**31, 2**62, length + 8)).to_bytes(8, "little")
            + data[8:]
        )
    header = json.loads(data[8 : 8 + length])
    notes = {key: _parsed(text) for key, text in header["__metadata__"].items()}
    notes.pop("crc32", None)  # else the checksum would reject every file
    if rng.random() < 0.7:
        _spoil(notes, rng)
    else:
        _spoil(header, rng)
    if isinstance(header.get("__metadata__"), dict):
        header["__metadata__"] = {
            key: value if isinstance(value, str) else json.dumps(value)
            for key, value in notes.items()
        }
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data[8 + length :]


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _spoil(node: Any, rng: random.Random) -> None:
    """Changes or removes something inside lists and dicts."""
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        key = rng.choice(keys)
        inner = node[key]
        if isinstance(inner, dict | list) and inner and rng.random() < 0.8:
            node = inner
            continue
        if rng.random() < 0.2:
            del node[key]
        else:
            node[key] = rng.choice(ODD)
        return
