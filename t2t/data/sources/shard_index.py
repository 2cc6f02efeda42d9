"""The index of a tar shard: where its images are, saved next to it as JSON."""

import hashlib
import json
import os
import re
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from t2t.atomic import write_atomically
from t2t.cache import cache_folder
from t2t.data.decoding.headers import IMAGE_SUFFIXES, OTHER_SUFFIX
from t2t.data.image_files import is_unread_name, is_url
from t2t.data.sources.base import Indices
from t2t.data.sources.storage import LocalFile, RemoteFile, open_storage, unopened
from t2t.errors import UserError, first_line, machine_error

KIND = "t2t shard index 1"
SUFFIX = ".index.json"
# Bytes after a shard's end that are checked: usually some kilobytes of zeros.
_MAX_CHECKED = 1 << 20
_SUFFIXES = IMAGE_SUFFIXES | {OTHER_SUFFIX}
Label = int | str | list[int | str]
"""A class by its number or name, or a list of several."""
_LABEL_KEYS = ("label", "labels", "cls", "class", "target")


@dataclass(frozen=True)
class ShardIndex:
    """The positions and labels of a shard's images."""

    offsets: Indices
    sizes: Indices
    labels: list[Any]
    """Numbers, or the classes' names, or both where some names are numbers; None for
    an image without a label."""
    stamp: list[int | str]
    """The size and time of the shard that this describes."""
    checked: dict[str, Any]
    """The names of images in formats that are not supported; for packs, also the
    checksum, the sizes before packing and the images left out."""

    def is_of(self, stamp: list[int | str]) -> bool:
        """Whether this describes the shard with that stamp."""
        # The shards of a pack never change, but copying changes their times.
        if "sha256" in self.checked:
            return self.stamp[0] == stamp[0]
        return self.stamp == stamp

    def check(self, path: str) -> None:
        """Refuses lists of unequal lengths, as after editing by hand."""
        lengths = len(self.offsets), len(self.sizes), len(self.labels)
        if len(set(lengths)) > 1:
            raise UserError(
                f"{path} has {lengths[0]} offsets, {lengths[1]} sizes and "
                f"{lengths[2]} labels, and each image needs one of each: remove this "
                "file to rebuild it."
            )

    def write(self, path: Path) -> None:
        """Writes the file atomically."""
        content = {
            "kind": KIND,
            "stamp": self.stamp,
            **self.checked,
            "offsets": self.offsets.tolist(),
            "sizes": self.sizes.tolist(),
            "labels": self.labels,
        }
        write_atomically(path, json.dumps(content).encode())


def parse_index(data: bytes) -> ShardIndex | None:
    """The index in these bytes; None if they are something else."""
    try:
        content = json.loads(data)
        if content.pop("kind") != KIND:
            return None
        index = ShardIndex(
            offsets=np.array(content.pop("offsets"), np.int64),
            sizes=np.array(content.pop("sizes"), np.int64),
            labels=[*content.pop("labels")],
            stamp=[*content.pop("stamp")],
            checked=content,
        )
        are_lists = index.offsets.ndim == index.sizes.ndim == 1 <= len(index.stamp)
        return index if are_lists else None
    except (ValueError, KeyError, AttributeError, TypeError):
        return None


def load_or_build(shard: str) -> ShardIndex:
    """The index of a shard, read if it is up to date, else built and saved."""
    try:
        storage = open_storage(shard)
        stamp = storage.stamp()
    except FileNotFoundError as error:
        raise UserError(f"There is no file {shard}.") from error
    except OSError as error:
        raise unopened(shard, error) from error
    paths = [Path(shard + SUFFIX)] if not is_url(shard) else []
    key = hashlib.sha256(
        os.fsencode(shard if is_url(shard) else os.path.abspath(shard))
    ).hexdigest()
    paths.append(cache_folder() / "indexes" / f"{key[:32]}.json")
    for path in paths:
        with suppress(OSError):  # missing or unreadable
            index = parse_index(path.read_bytes())
            if index is not None and index.is_of(stamp):
                index.check(str(path))
                return index
    if isinstance(storage, RemoteFile):
        uploaded = _read_uploaded(shard, stamp)
        if uploaded is not None:
            return uploaded
    index = build_index(storage, stamp)
    for path in paths:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            index.write(path)
        except OSError:  # the folder is read-only: the cache is next
            continue
        break
    return index


def _read_uploaded(shard: str, stamp: list[int | str]) -> ShardIndex | None:
    """The index next to a remote shard, whatever its time, as that was copied."""
    try:
        index = parse_index(RemoteFile(shard + SUFFIX).read_all())
    except OSError:
        return None
    if index is None or index.stamp[0] != stamp[0]:
        return None
    index.check(shard + SUFFIX)
    return index


def build_index(storage: LocalFile | RemoteFile, stamp: list[int | str]) -> ShardIndex:
    """Reads a shard once to list its images and labels."""
    offsets, sizes, labels, unread = [], [], [], []
    try:
        for image, label in _samples(storage, int(stamp[0])):
            if image is None:
                continue
            if is_unread_name(image.name):
                unread.append(image.name)
                continue
            offsets.append(image.offset_data)
            sizes.append(image.size)
            labels.append(label)
    except tarfile.TarError as error:
        raise UserError(
            f"{storage.path} is not an uncompressed tar file or is cut short ({error})."
        ) from error
    except UserError:
        raise
    except Exception as error:
        # Every protocol has its own errors, and few of them are OSErrors.
        if not (isinstance(error, OSError) or isinstance(storage, RemoteFile)):
            raise
        raise machine_error(storage.path, error) or UserError(
            f"{storage.path} could not be read to its end ({first_line(error)}): try "
            "again; finished shards are not read again."
        ) from error
    if not offsets:
        raise UserError(f"{storage.path} holds no images.")
    return ShardIndex(
        np.array(offsets, np.int64),
        np.array(sizes, np.int64),
        labels,
        stamp,
        {"unread": unread} if unread else {},
    )


def _samples(
    storage: LocalFile | RemoteFile, num_bytes: int
) -> Iterator[tuple[tarfile.TarInfo | None, Label | None]]:
    """Each run of members that share a key, as WebDataset groups them."""
    # On a disk the images are skipped; over a network that would be two requests for
    # each, so the whole shard is read.
    mode = "r|" if isinstance(storage, RemoteFile) else "r:"
    key, image, label = "", None, None
    with (
        storage.open_stream() as file,
        tarfile.open(fileobj=file, mode=mode) as tar,  # type: ignore[call-overload]
    ):
        for member in tar:
            folder, name = os.path.split(member.name)
            if name.startswith("."):
                continue
            if not member.isfile() or member.issparse():
                _check_no_image(storage.path, member)
                continue
            stem, _, extension = name.partition(".")
            this_key = os.path.join(folder, stem)
            if this_key != key:
                if key:
                    yield image, label
                key, image, label = this_key, None, None
            extension = extension.lower()
            suffix = os.path.splitext(name)[1].lower()
            if extension in ("cls", "json"):
                found = _label(tar.extractfile(member).read(), extension)
                label = found if found is not None else label
            elif image is not None and member.name == image.name:
                raise UserError(
                    f"{storage.path} holds {member.name} twice in a row: write the "
                    "shard again with a different key for each sample."
                )
            elif is_unread_name(name):
                image = image or member
            elif suffix in _SUFFIXES and (not image or is_unread_name(image.name)):
                image = member
        if key:
            yield image, label
        _check_end(storage, tar.offset, num_bytes)


def _check_no_image(shard: str, member: tarfile.TarInfo) -> None:
    """Refuses an image that is a link or a sparse file, without its own bytes."""
    is_named = os.path.splitext(member.name)[1].lower() in _SUFFIXES
    if is_named and not member.isdir():
        raise UserError(
            f"{shard} holds {member.name} only as a link or with holes: write the "
            "shard again with tar --dereference --hard-dereference."
        )


def _check_end(storage: LocalFile | RemoteFile, offset: int, num_bytes: int) -> None:
    """Refuses a shard with data after its end, which would be ignored."""
    # tarfile treats a damaged header as the end.
    length = min(num_bytes - offset, _MAX_CHECKED)
    if length > 0 and any(storage.read(offset, length)):
        raise UserError(
            f"{storage.path} is damaged at byte {offset}, or is several tar files in "
            "one, and what follows cannot be read: copy or write it again."
        )


def _label(data: bytes, extension: str) -> Label | None:
    # Bytes that are not text are kept: two classes may differ in them alone.
    text = data.decode("utf-8-sig", "surrogateescape").strip()
    if extension == "cls":
        value: Any = text or None
    else:
        try:
            content = json.loads(text)
        except ValueError:
            return None
        found = (
            [content[k] for k in _LABEL_KEYS if k in content]
            if isinstance(content, dict)
            else [content]
        )
        value = found[0] if found else None
    if isinstance(value, str):
        return int(value) if re.fullmatch("-?[0-9]+", value) else value
    if isinstance(value, list) and all(isinstance(each, int | str) for each in value):
        return value
    return value if isinstance(value, int) else None
