"""WebDataset tar shards, on a disk or behind a URL, read in any order."""

import json
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np

from t2t.data.decoding.damage import unread
from t2t.data.image_files import files_below, is_url
from t2t.data.sources.base import Indices, Openers, Source, digest
from t2t.data.sources.filenames import expand_braces, group_by_split, has_braces
from t2t.data.sources.folder import notes_on
from t2t.data.sources.labels import (
    labels_and_classes,
    labels_if_any,
    sets_and_classes,
)
from t2t.data.sources.process_cache import ProcessCache
from t2t.data.sources.shard_cache import ShardCache, Waiting
from t2t.data.sources.shard_index import load_or_build
from t2t.data.sources.storage import (
    LocalFile,
    RemoteFile,
    list_files,
    open_storage,
    unopened,
)
from t2t.errors import UserError

PACK_FILE = "pack.json"
_CLASS_LISTS = ("classes.txt", "classnames.txt")
_MAX_OPEN_FILES = 64
_REMOTE_AT_ONCE = 16
"""Remote shards that are read at once; constant, so that batches depend on no disk."""


def find_shard_splits(spec: str, labels: bool) -> Openers:
    """The splits that the shards are named for; "all" if they name none."""
    if has_braces(spec):
        shards = expand_braces(spec)
        root = spec[: spec.index("{")]
        root = root[: max(root.rfind("/"), root.rfind(os.sep)) + 1]
    elif spec.endswith(".tar"):
        shards = [spec]
        root = spec[: max(spec.rfind("/"), spec.rfind(os.sep)) + 1]
    else:
        shards = [path for path in list_files(spec) if path.endswith(".tar")]
        if not shards and not is_url(spec):  # in a folder per split, then
            shards = files_below(spec, ".tar")
        # Copies by a Mac have a second, hidden file for each.
        shards = [path for path in shards if not os.path.basename(path).startswith(".")]
        root = spec
        if not shards:
            raise UserError(f"{spec} holds no .tar shards.")
    groups = group_by_split(shards, root)
    if root == spec:
        _check_whole(spec, groups)
    return {
        split: partial(ShardSource, paths, root, labels)
        for split, paths in groups.items()
    }


def _check_whole(folder: str, groups: dict[str, list[str]]) -> None:
    """Refuses a pack that is not complete."""
    description = pack_description(folder)
    if description is None:
        return
    for split, num_images in description["images"].items():
        num = len(groups.get(split, []))
        expected = -(-num_images // description["shard_size"])
        if num < expected:
            raise UserError(
                f"{folder} is a pack with {num} of {expected} {split} shards: repeat "
                "the t2t pack command to finish it, or copy the rest."
            )


class ShardSource(Source):
    """Images in tar shards, found through an index that is built once and kept.

    Remote shards are copied to this machine before they are read.
    """

    def __init__(
        self, shards: Sequence[str], root: str = "", labels: bool = True
    ) -> None:
        self.shards = tuple(shards)
        self._files: ProcessCache[LocalFile | RemoteFile] = ProcessCache(
            _MAX_OPEN_FILES
        )
        self._cache = ShardCache() if any(map(is_url, shards)) else None
        self._num_stops = 0
        with ThreadPoolExecutor(8) as pool:
            indexes = list(pool.map(load_or_build, self.shards))
        self._ends = np.cumsum([len(index.offsets) for index in indexes])
        self._offsets = np.concatenate([index.offsets for index in indexes])
        self._sizes = np.concatenate([index.sizes for index in indexes])
        self._stamps = [index.stamp for index in indexes]
        classes = _class_names(root or os.path.dirname(self.shards[0]))
        values = [label for index in indexes for label in index.labels]
        if classes == () and all(value is None for value in values):
            labels = False  # an unlabelled pack, which one sentence refuses as a whole
        if labels and None in values:
            self._refuse_unlabelled(values.index(None))
        if any(isinstance(value, list) for value in values):
            found = sets_and_classes(values, classes, _title(shards))
            self.labels, self.label_sets, self.classes = found
        else:
            number_labels = labels_and_classes if labels else labels_if_any
            self.labels, self.classes = number_labels(values, classes, _title(shards))
        self.notes = notes_on(
            f"{shard}:{name}"
            for shard, index in zip(self.shards, indexes, strict=True)
            for name in index.checked.get("unread", ())
        )

    def _refuse_unlabelled(self, index: int) -> None:
        member = self.name(index).removeprefix(f"{self.shards[self._shard_of(index)]}:")
        folder, name = os.path.split(member)
        key = os.path.join(folder, name.partition(".")[0])
        raise UserError(
            f"{self.shards[self._shard_of(index)]} has the image {member} but no "
            f"{key}.cls or {key}.json with its label."
        )

    def _storage(self, shard: int, waiting: Waiting) -> LocalFile | RemoteFile:
        """The open shard, on this machine."""
        path = self.shards[shard]
        if self._cache is not None and not self._files.has(shard):
            remote = RemoteFile(path)
            path = str(self._cache.fetch(remote, self._stamps[shard], waiting))
        return self._files.get(shard, lambda _: LocalFile(path))

    def _storage_for_name(self, shard: int) -> LocalFile | RemoteFile:
        """The shard, not copied to this machine for a name alone."""
        if self._cache is None or self._files.has(shard):
            return self._storage(shard, Waiting())
        return open_storage(self.shards[shard])

    @property
    def has_remote_blocks(self) -> bool:
        return self._cache is not None

    @property
    def blocks(self) -> Indices | None:
        if self._cache is None:
            return None
        counts = np.diff(self._ends, prepend=0)
        return np.repeat(np.arange(len(counts)), counts)

    @property
    def num_blocks_at_once(self) -> int:
        return _REMOTE_AT_ONCE

    def fetch_block(self, block: int, warn: Callable[[str], None]) -> None:
        if self._cache is not None:
            waiting = Waiting(warn)
            remote = RemoteFile(self.shards[block])
            self._cache.fetch(remote, self._stamps[block], waiting)

    def stop_waiting(self) -> None:
        self._num_stops += 1

    def _shard_of(self, index: int) -> int:
        return int(np.searchsorted(self._ends, index, side="right"))

    def read(self, index: int) -> bytes:
        shard = self._shard_of(index)
        offset, size = int(self._offsets[index]), int(self._sizes[index])
        num_stops = self._num_stops
        waiting = Waiting(is_cancelled=lambda: self._num_stops != num_stops)
        try:
            return self._storage(shard, waiting).read(offset, size)
        except (OSError, MemoryError, UserError) as error:
            raise unread(self.name(index), error) from error

    def fingerprint(self) -> str:
        if self.is_labelled:
            return super().fingerprint()
        return digest(self._offsets, self._sizes)

    def name(self, index: int) -> str:
        shard = self._shard_of(index)
        offset = int(self._offsets[index])
        # A member's header is the block before its bytes and begins with its name.
        try:
            header = self._storage_for_name(shard).read(offset - 512, 100)
        except (OSError, UserError):  # a message must not fail
            return f"{self.shards[shard]} at byte {offset}"
        member = header.split(b"\0")[0].decode("utf-8", "replace")
        return f"{self.shards[shard]}:{member}"


def _title(shards: Sequence[str]) -> str:
    return shards[0] if len(shards) == 1 else f"{shards[0]} and {len(shards) - 1} more"


def _path_beside(root: str, name: str) -> str:
    if not root or root.endswith(("/", os.sep)):
        return root + name
    return f"{root}/{name}"


def _beside(root: str, name: str) -> bytes | None:
    """A small file in the shards' folder, if there is one."""
    path = _path_beside(root, name)
    try:
        return open_storage(path).read_all()
    except (UserError, FileNotFoundError):
        return None
    except OSError as error:
        raise unopened(path, error) from error


def pack_description(root: str) -> dict[str, Any] | None:
    """The description in a pack; None if the folder is not a pack."""
    data = _beside(root, PACK_FILE)
    if data is None:
        return None
    try:
        description: dict[str, Any] = json.loads(data)
        sizes = [description["shard_size"], *description["images"].values()]
        names = description["classes"]
        if not all(isinstance(size, int) for size in sizes) or not all(
            isinstance(name, str) for name in names
        ):
            raise TypeError
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{_path_beside(root, PACK_FILE)} is damaged, and without it the pack "
            "cannot be read: copy it from where the pack came from, or pack again into "
            "a new folder."
        ) from error
    return description


def _class_names(root: str) -> tuple[str, ...] | None:
    """The names of the classes, from a pack's description or a list."""
    description = pack_description(root)
    if description is not None:
        return tuple(description["classes"])
    for name in _CLASS_LISTS:
        data = _beside(root, name)
        if data is not None:
            try:
                lines = data.decode("utf-8-sig").splitlines()
            except UnicodeDecodeError as error:
                path = _path_beside(root, name)
                raise UserError(
                    f"{path} is not text in UTF-8: save it as UTF-8."
                ) from error
            return tuple(line.strip() for line in lines if line.strip())
    return None
