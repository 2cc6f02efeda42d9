"""Folders of images, with one folder per class or without classes."""

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from shlex import quote

import numpy as np

from t2t.data.decoding.headers import COMMON_SUFFIXES
from t2t.data.image_files import (
    contains_any,
    has_suffix,
    is_dir,
    is_image,
    is_unread_name,
    suffix_of,
    walk,
)
from t2t.data.sources.base import FileSource, Openers, no_labels
from t2t.data.sources.filenames import SPLIT_NAMES
from t2t.data.sources.label_patterns import suggestion
from t2t.errors import UserError, on_one_line

_SHARDS = frozenset((".tar",))
_KNOWN = ", ".join(COMMON_SUFFIXES[:6])


def find_folder_splits(root: Path, labels: bool = True) -> Openers:
    """Each split of an image folder by name, or the whole as "all"."""
    folders = {entry.name.lower(): entry for entry in os.scandir(root) if is_dir(entry)}
    splits = {}
    for split, names in SPLIT_NAMES.items():
        for name in names:
            if name in folders:
                splits[split] = partial(open_folder, Path(folders[name].path), labels)
                break
    # A class may be called "test": these are splits only beside a training folder, or
    # if there is nothing else and they hold folders, not images.
    if "train" in splits or (splits and all(map(_holds_classes, folders.items()))):
        return splits
    return {"all": partial(open_folder, root, labels)}


def _holds_classes(folder: tuple[str, os.DirEntry[str]]) -> bool:
    """Whether a folder is named for a split and holds folders but no images."""
    name, entry = folder
    if not any(name in names for names in SPLIT_NAMES.values()):
        return False
    inner, images, _ = class_folders(Path(entry.path))
    return bool(inner) and not images


def holds_images_by_class(root: Path) -> bool:
    """Whether it holds several folders with images in each."""
    folders, *_ = class_folders(root)
    above = (root.resolve(),)
    inner = (walk(str(root / name), above=above) for name in folders)
    return len(folders) > 1 and all(any(True for _ in images) for images in inner)


def open_folder(root: Path, labels: bool = True) -> FileSource:
    """One folder whose subfolders are the classes, in the order of their names.

    Without `labels`, the images may be anywhere in it: the source has classes only if
    all images are in class folders.
    """
    folders, loose, other_files = class_folders(root)
    if labels and not folders:
        if loose:
            raise UserError(
                f"{root} holds images but no class folders: put the images of each "
                f"class into a folder named for it, as in {root}/cat/1.jpg, or name a "
                f"table of labels ({_labels_option(other_files)}). Pre-training needs "
                f"no labels (t2t train pretrain.moco_v3).{_if_a_class(root)}"
                f"{suggestion(loose)}"
            )
        raise UserError(
            f"{root} holds no folders: it should hold one folder of images per class. "
            f"{' '.join(notes_on(other_files))}".rstrip()
        )
    above = (root.resolve(),)
    # Listing waits for the disk: threads wait at the same time.
    with ThreadPoolExecutor(16) as pool:
        paths = [str(root / name) for name in folders]
        found = list(pool.map(lambda path: _listed(path, above), paths))
    counts = [len(images) for images, _ in found]
    others = [*other_files, *(path for _, some in found for path in some)]
    notes = (*note_on_broken_links(other_files), *notes_on(others))
    names = [
        f"{name}{os.sep}{file}"
        for name, (images, _) in zip(folders, found, strict=True)
        for file in images
    ]
    if labels:
        if 0 in counts:
            _, others = found[counts.index(0)]
            raise UserError(
                f"Class folder {root / folders[counts.index(0)]} holds no images: add "
                f"some ({_KNOWN}, …) or remove the folder. "
                f"{' '.join(notes_on(others))}".rstrip()
            )
        notes = (*note_on_loose_images(loose), *note_on_depth(root, found), *notes)
    elif loose or 0 in counts or len(folders) < 2:
        names = [*(os.path.basename(path) for path in loose), *names]
        if not names:
            raise UserError(
                f"{root} holds no images: add some ({_KNOWN}, …). "
                f"{' '.join(notes_on(others))}".rstrip()
            )
        return FileSource(root, names, no_labels(len(names)), (), notes)
    numbers = np.repeat(np.arange(len(folders), dtype=np.int64), counts)
    return FileSource(root, names, numbers, tuple(folders), notes)


def _labels_option(files: Sequence[str]) -> str:
    """The option that names the only table among the files, if there is one."""
    tables = [file for file in files if file.lower().endswith((".csv", ".tsv"))]
    return f"--labels {quote(tables[0])}" if len(tables) == 1 else "--labels"


def _if_a_class(root: Path) -> str:
    """A sentence for a folder that has the name of a split and may be a class."""
    if root.name.lower() not in SPLIT_NAMES["train"]:
        return ""
    return (
        f" If {root.name} is itself a class, put all class folders into one folder "
        f"called train, as in {root.parent}/train/{root.name}/1.jpg."
    )


def _listed(folder: str, above: tuple[Path, ...]) -> tuple[list[str], list[str]]:
    """The images below a folder, and the paths of its other files."""
    others: list[str] = []
    return list(walk(folder, above=above, on_other=others.append)), others


def note_on_loose_images(images: list[str]) -> tuple[str, ...]:
    """A sentence on images outside the class folders, if there are any."""
    if not images:
        return ()
    return (
        f"{_skipped(images, 'images')}: not inside a class folder; move each image "
        "into the folder of its class.",
    )


def note_on_depth(
    root: Path, found: Sequence[tuple[list[str], list[str]]]
) -> tuple[str, ...]:
    """A sentence on class folders with equal folders in them, which may be meant."""
    # For most data the first image of each class is enough to see that it is not so.
    if not all(os.sep in images[0] for images, _ in found):
        return ()
    inner = [{name.partition(os.sep)[0] for name in images} for images, _ in found]
    common = sorted(set.intersection(*inner))
    if len(inner) < 2 or len(common) < 2 or any(each == "" for each in common):
        return ()
    shown = ", ".join(common[:3]) + (", …" if len(common) > 3 else "")
    return (
        f"The classes are the folders in {root}. If they are the folders in these "
        f"({shown}), add --label-pattern '{{label}}/*'.",
    )


def note_on_broken_links(paths: list[str]) -> tuple[str, ...]:
    """A sentence on the links among these that lead nowhere, if there are any."""
    links = [path for path in paths if os.path.islink(path)]
    broken = [path for path in links if not os.path.exists(path)]
    if not broken:
        return ()
    return (f"{_skipped(broken, 'links')}: the target does not exist.",)


def notes_on(others: Iterable[str]) -> tuple[str, ...]:
    """A sentence for each kind of skipped file that may hold images."""
    kinds: dict[str, list[str]] = {}
    for path in others:
        if is_unread_name(path) or has_suffix(_SHARDS, path):
            kinds.setdefault(suffix_of(path), []).append(path)
    return tuple(_note_on(suffix, paths) for suffix, paths in kinds.items())


def _note_on(suffix: str, paths: list[str]) -> str:
    which = _skipped(paths, f"{suffix} files")
    if suffix in _SHARDS:
        return f"{which}: the images in the class folders are used."
    them = "it" if len(paths) == 1 else "them"
    return f"{which}: this format is not supported; convert {them} to JPEG or PNG."


def _skipped(paths: list[str], kind: str) -> str:
    """How many files are skipped, and the first of them."""
    first = on_one_line(paths[0])
    if len(paths) == 1:
        return f"{first} is skipped"
    return f"{len(paths):,} {kind} ({first}, …) are skipped"


def class_folders(root: Path) -> tuple[list[str], list[str], list[str]]:
    """The names of the folders, and the paths of the images and of other files."""
    folders = []
    images = []
    others = []
    above = (root.resolve(),)
    with os.scandir(root) as entries:
        for entry in entries:
            if is_image(entry):
                images.append(entry.path)
            elif not is_dir(entry):
                others.append(entry.path)
            elif not contains_any(entry.path, above):
                folders.append(entry.name)
    return sorted(folders), sorted(images), sorted(others)
