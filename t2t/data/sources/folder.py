"""Images in folders named for their classes."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from t2t.data.headers import IMAGE_SUFFIXES
from t2t.data.sources.base import FileSource, Source
from t2t.data.sources.filenames import SPLIT_NAMES
from t2t.errors import UserError


def find_folder_splits(root: Path) -> dict[str, Callable[[], Source]]:
    """Each split of an image folder by name, or the whole as "all"."""
    folders = {entry.name.lower(): entry for entry in os.scandir(root) if is_dir(entry)}
    splits: dict[str, Callable[[], Source]] = {}
    for split, names in SPLIT_NAMES.items():
        for name in names:
            if name in folders:
                splits[split] = _opener(Path(folders[name].path))
                break
    # A class may be called "test": only a training folder makes these splits.
    return splits if "train" in splits else {"all": _opener(root)}


def _opener(root: Path) -> Callable[[], Source]:
    return lambda: open_folder(root)


def open_folder(root: Path) -> FileSource:
    """One folder whose subfolders are the classes, in the order of their names."""
    folders, has_images = _class_folders(root)
    if not folders:
        if has_images:
            raise UserError(
                f"{root} holds images but no class folders: put the images of each "
                f"class into a folder named for it, as in {root}/cat/1.jpg."
            )
        raise UserError(f"{root} is empty: it should hold one folder per class.")
    # Listing waits for the disk, which several threads do at once.
    with ThreadPoolExecutor(16) as pool:
        listings = list(pool.map(_list_images, [str(root / name) for name in folders]))
    for name, listing in zip(folders, listings, strict=True):
        if not listing:
            raise UserError(
                f"Class folder {root / name} holds no images: add some "
                f"({', '.join(sorted(IMAGE_SUFFIXES)[:6])}, …) or remove the folder."
            )
    names = [
        f"{name}{os.sep}{file}"
        for name, listing in zip(folders, listings, strict=True)
        for file in listing
    ]
    labels = np.repeat(
        np.arange(len(folders)), [len(listing) for listing in listings]
    ).astype(np.int64)
    return FileSource(root, names, labels, tuple(folders))


def is_image_name(name: str) -> bool:
    """Whether a file is called an image and is not hidden."""
    return os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES and not name.startswith(
        "."
    )


def is_dir(entry: os.DirEntry[str]) -> bool:
    """Whether this is a folder, or a link to one, that is not hidden."""
    return not entry.name.startswith(".") and entry.is_dir()


def _class_folders(root: Path) -> tuple[list[str], bool]:
    folders = []
    has_images = False
    with os.scandir(root) as entries:
        for entry in entries:
            if is_image_name(entry.name):
                has_images = True
            elif is_dir(entry):
                folders.append(entry.name)
    return sorted(folders), has_images


def _list_images(folder: str, prefix: str = "") -> list[str]:
    """All images below a folder, in order, relative to it."""
    images = []
    deeper = []
    with os.scandir(folder) as entries:
        for entry in entries:
            # By its name first: asking what an entry is may cost a look at the disk.
            if is_image_name(entry.name):
                images.append(prefix + entry.name)
            elif is_dir(entry):
                deeper.append(entry.name)
    images.sort()
    for name in sorted(deeper):
        images += _list_images(os.path.join(folder, name), f"{prefix}{name}{os.sep}")
    return images
