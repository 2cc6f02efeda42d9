"""Writes tar shards atomically, from images that threads prepare."""

import hashlib
import io
import json
import os
import tarfile
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image
from torch import Tensor

from t2t.data.decoding.damage import Damage, DamagedImage
from t2t.data.decoding.decode import decode
from t2t.data.decoding.headers import (
    DEFAULT_MAX_PIXELS,
    OTHER_SUFFIX,
    SUFFIXES,
    image_format,
    jpeg_header,
)
from t2t.data.sources.base import Indices, Source
from t2t.data.sources.shard_index import SUFFIX, ShardIndex, parse_index
from t2t.data.sources.storage import LocalFile
from t2t.errors import UserError

PackedLabel = int | list[int] | None
"""The number of a class, or of several; None for images without labels."""
# Images prepared ahead of the one being written, for each thread.
_NUM_AHEAD = 4


@dataclass(frozen=True)
class Shard:
    """One shard: its path, and its images by index in the source."""

    path: Path
    source: Source
    images: Indices
    first: int
    """The position of its first image in the split; members are named by position."""


@dataclass(frozen=True)
class Settings:
    """How images are stored in a pack."""

    short_side: int | None
    quality: int
    max_pixels: int = DEFAULT_MAX_PIXELS


def write_shard(
    shard: Shard,
    settings: Settings,
    num_workers: int,
    damage: Damage,
    advance: Callable[[int], None],
) -> ShardIndex:
    """Writes a shard under another name, checks it, then renames it."""
    part = shard.path.with_name(f"{shard.path.name}.part")
    try:
        with ThreadPoolExecutor(num_workers) as pool, open(part, "wb") as file:
            written = _Written()
            for position, future in _prepare_ahead(pool, shard, settings, num_workers):
                try:
                    image = future.result()
                except DamagedImage as damaged:
                    damage.record(damaged)
                    written.damaged.append((damaged.name, damaged.reason))
                else:
                    label = label_of(shard.source, int(shard.images[position]))
                    written.add(file, f"{shard.first + position:09d}", image, label)
                advance(1)
            file.write(bytes(2 * tarfile.BLOCKSIZE))
            file.flush()
            os.fsync(file.fileno())
        index = written.checked_index(part)
        index.write(Path(f"{shard.path}{SUFFIX}"))
        os.replace(part, shard.path)
    except OSError as error:
        raise UserError(
            f"{shard.path} could not be written ({error}): fix that and run the same "
            "command to resume."
        ) from error
    finally:
        part.unlink(missing_ok=True)
    return index


def label_of(source: Source, index: int) -> PackedLabel:
    """The label of an image as a pack stores it."""
    if not source.is_labelled:
        return None
    classes = source.classes_of(index)
    return [*classes] if source.is_multilabel else classes[0]


@dataclass
class _Written:
    """What has been written to a shard so far."""

    offsets: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    labels: list[PackedLabel] = field(default_factory=list)
    checksums: list[int] = field(default_factory=list)
    damaged: list[tuple[str, str]] = field(default_factory=list)
    """Names of the images left out, and why."""
    bytes_before: int = 0

    def add(
        self,
        file: io.BufferedWriter,
        key: str,
        image: "Prepared",
        label: PackedLabel,
    ) -> None:
        """Appends an image and its label, if any, as WebDataset pairs them."""
        self.offsets.append(_add_member(file, key + image.suffix, image.data))
        if isinstance(label, list):
            _add_member(file, f"{key}.json", json.dumps({"labels": label}).encode())
        elif label is not None:
            _add_member(file, f"{key}.cls", str(label).encode())
        self.sizes.append(len(image.data))
        self.labels.append(label)
        self.checksums.append(zlib.crc32(image.data))
        self.bytes_before += image.bytes_before

    def checked_index(self, path: Path) -> ShardIndex:
        """The index, after every image has been read back by it."""
        stored = LocalFile(str(path))
        members = zip(self.offsets, self.sizes, self.checksums, strict=True)
        for offset, size, checksum in members:
            if zlib.crc32(stored.read(offset, size)) != checksum:
                raise OSError("what was written reads back differently")
        return ShardIndex(
            np.array(self.offsets, np.int64),
            np.array(self.sizes, np.int64),
            list(self.labels),
            stored.stamp(),
            {
                "sha256": _sha256(path),
                "bytes_before": self.bytes_before,
                "damaged": self.damaged,
            },
        )


@dataclass(frozen=True)
class Prepared:
    """The bytes of an image as a pack stores them."""

    data: bytes
    suffix: str
    bytes_before: int


def prepared(source: Source, index: int, settings: Settings) -> Prepared:
    """An image's bytes, unchanged or made smaller, after a test that they decode."""
    name = source.name(index)
    given = source.read(index)
    header = jpeg_header(given) if isinstance(given, bytes) else None
    min_side = None
    if header and settings.short_side is not None:
        # Down to an eighth, the most that the JPEG decoder itself can shrink.
        min_side = max(settings.short_side, min(header[:2]) // 8)
    pixels = decode(
        given,
        name=name,
        min_side=min_side,
        max_pixels=settings.max_pixels,
    )
    # The size in the file: a JPEG may have been decoded at a smaller size.
    short = min(header[:2] if header else pixels.shape[-2:])
    shrink = settings.short_side is not None and short > settings.short_side
    num_bytes = given.numel() if isinstance(given, Tensor) else len(given)
    if isinstance(given, bytes) and not shrink:
        suffix = SUFFIXES.get(image_format(given) or "", OTHER_SUFFIX)
        return Prepared(given, suffix, num_bytes)
    if isinstance(given, Tensor):
        pixels = given
    try:
        data, suffix = encoded(pixels, settings if shrink else None)
    except OSError as error:  # a strip that is longer than a JPEG can be
        reason = f"made smaller, it cannot be stored as a JPEG ({error})"
        raise DamagedImage(name, reason) from error
    decode(data, name=name)
    return Prepared(data, suffix, num_bytes)


def encoded(pixels: Tensor, settings: Settings | None) -> tuple[bytes, str]:
    """A smaller JPEG; without settings, a PNG with the same pixels."""
    rows = pixels.permute(1, 2, 0).numpy()
    image = Image.fromarray(rows[..., 0] if rows.shape[-1] == 1 else rows)
    buffer = io.BytesIO()
    if settings is None:
        image.save(buffer, "PNG")
        return buffer.getvalue(), ".png"
    assert settings.short_side is not None
    scale = settings.short_side / min(image.size)
    size = round(image.width * scale), round(image.height * scale)
    image = image.resize(size, Image.Resampling.BICUBIC)
    image.save(buffer, "JPEG", quality=settings.quality)
    return buffer.getvalue(), ".jpg"


def _add_member(file: io.BufferedWriter, name: str, data: bytes) -> int:
    """Appends a file to the tar and returns the offset of its bytes."""
    member = tarfile.TarInfo(name)
    member.size = len(data)
    file.write(member.tobuf(tarfile.USTAR_FORMAT))
    offset = file.tell()
    file.write(data)
    file.write(bytes(-len(data) % tarfile.BLOCKSIZE))
    return offset


def _prepare_ahead(
    pool: ThreadPoolExecutor, shard: Shard, settings: Settings, num_workers: int
) -> Iterator[tuple[int, "Future[Prepared]"]]:
    """Images in order, only a few of them prepared ahead."""
    waiting: deque[tuple[int, Future[Prepared]]] = deque()
    try:
        for position, index in enumerate(shard.images.tolist()):
            future = pool.submit(prepared, shard.source, index, settings)
            waiting.append((position, future))
            if len(waiting) > _NUM_AHEAD * num_workers:
                yield waiting.popleft()
        while waiting:
            yield waiting.popleft()
    finally:
        for _, future in waiting:
            future.cancel()


def verified_index(shard: Shard) -> ShardIndex | None:
    """The index of a finished shard; None if count or checksum differ from it."""
    file = Path(f"{shard.path}{SUFFIX}")
    if not shard.path.is_file() or not file.is_file():
        return None
    index = parse_index(file.read_bytes())
    if index is None or not {"sha256", "damaged"} <= index.checked.keys():
        return None
    num_images = len(index.offsets) + len(index.checked["damaged"])
    if num_images != len(shard.images) or index.checked["sha256"] != _sha256(
        shard.path
    ):
        return None
    return index


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
