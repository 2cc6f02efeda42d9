"""Shrinks the images of any data and packs them into tar shards."""

import json
import os
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from t2t.atomic import write_atomically
from t2t.data.decoding.damage import (
    DEFAULT_MAX_DAMAGED,
    Damage,
    DamagedImage,
    damage_limit,
)
from t2t.data.decoding.headers import DEFAULT_MAX_PIXELS
from t2t.data.label_config import NO_LABEL_CONFIG, LabelConfig, differs_from_default
from t2t.data.packing.shard_writer import (
    Settings,
    Shard,
    label_of,
    verified_index,
    write_shard,
)
from t2t.data.resources import num_cores
from t2t.data.sources.base import Source, Splits
from t2t.data.sources.find_splits import is_named
from t2t.data.sources.open_splits import open_splits
from t2t.data.sources.shard_index import SUFFIX, ShardIndex
from t2t.data.sources.shards import PACK_FILE, ShardSource, pack_description
from t2t.data.sources.splitting import mixed_order
from t2t.errors import UserError

KIND = "t2t pack 1"
LOCK_FILE = ".pack.lock"


@dataclass(frozen=True)
class PackResult:
    """What a pack contains, written by this run or an earlier one."""

    folder: Path
    num_images: int
    num_shards: int
    bytes_before: int
    bytes_after: int
    is_labelled: bool
    damaged: tuple[DamagedImage, ...]
    """Images left out, and why."""
    num_resumed: int
    """Shards that an earlier run wrote and that are intact."""
    notes: tuple[str, ...] = ()
    """Notes on the source, for the user."""


def pack(
    source_spec: str | Path,
    destination: str | Path,
    *,
    short_side: int | None = 256,
    quality: int = 90,
    shard_size: int = 4096,
    num_workers: int | None = None,
    seed: int = 0,
    val_fraction: float = 0.1,
    max_damaged: str = DEFAULT_MAX_DAMAGED,
    max_pixels: int = DEFAULT_MAX_PIXELS,
    labels: bool = True,
    label_config: LabelConfig = NO_LABEL_CONFIG,
    progress: Callable[[int, int], None] | None = None,
) -> PackResult:
    """Packs the training and validation images of any data into WebDataset shards.

    Images larger than `short_side` are shrunk to it and become JPEGs of this quality;
    others, or all if it is None, keep their bytes. The same call resumes an
    interrupted pack. Without `labels`, images need none, as for `open_splits`.
    `progress` is called with the number of images done and in all.
    """
    _check_numbers(short_side, quality, shard_size)
    folder = Path(destination).expanduser()
    _check_not_nested(source_spec, folder)
    splits = _open(source_spec, seed, val_fraction, labels, label_config)
    limit = damage_limit(max_damaged, len(splits.train) + len(splits.val))
    description = {
        "kind": KIND,
        "source": str(source_spec),
        "seed": seed,
        "short_side": short_side,
        "quality": quality,
        "shard_size": shard_size,
        "images": {"train": len(splits.train), "val": len(splits.val)},
        "contents": [splits.train.fingerprint(), splits.val.fingerprint()],
        "classes": list(splits.train.classes),
    }
    if splits.train.is_multilabel:
        description["multilabel"] = True
    _claim(folder, description)
    shards = [
        shard
        for split, source in (("train", splits.train), ("val", splits.val))
        for shard in _shards(folder, split, source, seed, shard_size)
    ]
    try:
        with FileLock(folder / LOCK_FILE, timeout=0):
            result = _write(
                folder,
                shards,
                Settings(short_side, quality, max_pixels),
                num_workers or num_cores(),
                Damage(limit),
                progress or (lambda done, total: None),
            )
            (folder / LOCK_FILE).unlink(missing_ok=True)
            return replace(result, notes=splits.notes)
    except Timeout as error:
        raise UserError(
            f"Another process is packing into {folder}: wait for it to end."
        ) from error


def _open(
    source_spec: str | Path,
    seed: int,
    val_fraction: float,
    labels: bool,
    label_config: LabelConfig,
) -> Splits:
    """The images to pack; an error names `--unlabelled` if that would help."""
    try:
        return open_splits(
            source_spec,
            seed=seed,
            val_fraction=val_fraction,
            labels=labels,
            label_config=label_config,
            unlisted=not labels,
        )
    except UserError as error:
        given = differs_from_default(label_config)
        if labels and not given and _is_unlabelled(source_spec):
            raise UserError(
                f"{error} To pack the images without labels, add --unlabelled."
            ) from error
        raise


def _is_unlabelled(source_spec: str | Path) -> bool:
    """Whether these are images that have no labels."""
    with suppress(UserError):
        return not open_splits(source_spec, labels=False).train.is_labelled
    return False


def _write(
    folder: Path,
    shards: list[Shard],
    settings: Settings,
    num_workers: int,
    damage: Damage,
    progress: Callable[[int, int], None],
) -> PackResult:
    """Writes the missing shards, then opens the pack to check it."""
    num_images = sum(len(shard.images) for shard in shards)
    num_done = 0

    def advance(num: int) -> None:
        nonlocal num_done
        num_done += num
        progress(num_done, num_images)

    indexes = []
    num_resumed = 0
    for shard in shards:
        index = verified_index(shard)
        if index is None:
            index = write_shard(shard, settings, num_workers, damage, advance)
        else:
            for damaged in _damaged(index):
                damage.record(damaged)
            num_resumed += 1
            advance(len(shard.images))
        indexes.append(index)
    _check_not_empty(folder, shards, indexes)
    _check_as_read(shards, indexes)
    return PackResult(
        folder=folder,
        num_images=sum(len(index.offsets) for index in indexes),
        num_shards=len(shards),
        bytes_before=sum(index.checked["bytes_before"] for index in indexes),
        bytes_after=sum(int(index.sizes.sum()) for index in indexes),
        is_labelled=shards[0].source.is_labelled,
        damaged=tuple(each for index in indexes for each in _damaged(index)),
        num_resumed=num_resumed,
    )


def _damaged(index: ShardIndex) -> list[DamagedImage]:
    return [DamagedImage(name, reason) for name, reason in index.checked["damaged"]]


def _check_not_empty(
    folder: Path, shards: list[Shard], indexes: list[ShardIndex]
) -> None:
    """Removes a pack that has no image to train or to validate with, and raises."""
    num_images: Counter[str] = Counter()
    for shard, index in zip(shards, indexes, strict=True):
        num_images[shard.path.name.partition("-")[0]] += len(index.offsets)
    if all(num_images.values()):
        return
    for shard in shards:
        shard.path.unlink()
        Path(f"{shard.path}{SUFFIX}").unlink()
    (folder / PACK_FILE).unlink()
    (folder / LOCK_FILE).unlink(missing_ok=True)
    with suppress(OSError):  # it contains other files
        folder.rmdir()
    empty = " or ".join(split for split, num in num_images.items() if not num)
    first = next(each for index in indexes for each in _damaged(index))
    raise UserError(
        f"No image for {empty} can be read, so nothing was packed; the first is "
        f"{first}."
    )


def _check_not_nested(source_spec: str | Path, folder: Path) -> None:
    """Raises an error if source and destination contain one another."""
    source = Path(source_spec).expanduser()
    if is_named(str(source_spec)) or not source.is_dir():
        return
    inside, outside = folder.resolve(), source.resolve()
    if inside.is_relative_to(outside) or outside.is_relative_to(inside):
        raise UserError(
            f"{folder} and the data {source_spec} contain one another: give a folder "
            "outside the data to pack into."
        )


def _check_numbers(short_side: int | None, quality: int, shard_size: int) -> None:
    if short_side is not None and short_side < 1:
        raise UserError(
            f"The short side cannot be {short_side} pixels: give 1 or more, or "
            "--short-side 0 to keep the size of all images."
        )
    if not 1 <= quality <= 100:
        raise UserError(f"JPEG quality {quality} is not between 1 and 100.")
    if shard_size < 1:
        raise UserError(f"A shard cannot have {shard_size} images: give 1 or more.")


def _claim(folder: Path, description: dict[str, Any]) -> None:
    """Reserves the folder for this pack, or checks that an earlier run did."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file: give a folder to pack into.")
    described = folder / PACK_FILE
    if not described.exists():
        # A process killed on its way here may have left a part of its first file.
        own = (PACK_FILE, f".{PACK_FILE}", LOCK_FILE)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if any(not name.startswith(own) for name in os.listdir(folder)):
                raise UserError(
                    f"{folder} contains other files: give an empty or a new folder."
                )
            write_atomically(described, json.dumps(description, indent=1).encode())
        except OSError as error:
            raise UserError(
                f"{folder} cannot be written to ({error.strerror}): fix that and run "
                "the command again, or give another folder."
            ) from error
        return
    there = pack_description(str(folder)) or {}
    # Earlier versions did not record it.
    there.setdefault("contents", description["contents"])
    differing = [key for key in description if there.get(key) != description[key]]
    if differing:
        raise UserError(
            f"{folder} contains a pack with another {', '.join(differing)}: give the "
            "same arguments to resume it, or another folder."
        )


def _shards(
    folder: Path, split: str, source: Source, seed: int, shard_size: int
) -> list[Shard]:
    order = mixed_order(source, seed)
    return [
        Shard(
            folder / f"{split}-{number:06d}.tar",
            source,
            order[first : first + shard_size],
            first,
        )
        for number, first in enumerate(range(0, len(order), shard_size))
    ]


def _check_as_read(shards: list[Shard], indexes: list[ShardIndex]) -> None:
    """Opens the pack and compares its labels with the source's."""
    is_labelled = shards[0].source.is_labelled
    whole = ShardSource([str(shard.path) for shard in shards], labels=is_labelled)
    written = [label for index in indexes for label in index.labels]
    read = [label_of(whole, number) for number in range(len(whole))]
    if read != written:
        raise UserError(
            f"{shards[0].path.parent} reads back different labels than were written: "
            "pack again into another folder."
        )
