"""Images in folders named for their classes."""

import os
from collections.abc import Callable, Iterator
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
    # A class may be called "test": only a training folder makes these splits, or that
    # there is nothing else and they hold folders in place of images.
    if "train" in splits or (splits and all(map(_holds_classes, folders.items()))):
        return splits
    return {"all": _opener(root)}


def _holds_classes(folder: tuple[str, os.DirEntry[str]]) -> bool:
    """Whether a folder is named for a split and holds folders but no images."""
    name, entry = folder
    if not any(name in names for names in SPLIT_NAMES.values()):
        return False
    inner, has_images = _class_folders(Path(entry.path))
    return bool(inner) and not has_images


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
    above = (root.resolve(),)
    # Listing waits for the disk, which several threads do at once.
    with ThreadPoolExecutor(16) as pool:
        places = [str(root / name) for name in folders]
        listings = list(pool.map(lambda place: list(walk(place, above=above)), places))
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


def is_image_name(path: str) -> bool:
    """Whether a file is called an image and is not hidden."""
    name = os.path.basename(path)
    is_hidden = name.startswith(".")
    return os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES and not is_hidden


def is_dir(entry: os.DirEntry[str]) -> bool:
    """Whether this is a folder, or a link to one, that is not hidden."""
    if entry.name.startswith("."):
        return False
    # Of a link that leads to itself the entry would say so with an error.
    return os.path.isdir(entry.path) if entry.is_symlink() else entry.is_dir()


def walk(
    folder: str,
    prefix: str = "",
    above: tuple[Path, ...] = (),
    on_error: Callable[[OSError], None] | None = None,
) -> Iterator[str]:
    """All images below a folder, in order, each path begun with `prefix`.

    A link is followed, but not back to a folder that it lies in; `above` are those on
    the way here. `on_error` is told of folders that cannot be read, in place of a stop.
    """
    above = (*above, Path(folder).resolve())
    images = []
    deeper = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if _is_image(entry):
                    images.append(prefix + entry.name)
                elif is_dir(entry):
                    deeper.append(entry.name)
    except OSError as error:
        if on_error is None:
            raise
        on_error(error)
    yield from sorted(images)
    for name in sorted(deeper):
        inner = os.path.join(folder, name)
        if not _leads_back(inner, above):
            yield from walk(inner, f"{prefix}{name}{os.sep}", above, on_error)


def _is_image(entry: os.DirEntry[str]) -> bool:
    # A link is taken at its name: to ask where it leads costs a look at the disk.
    return is_image_name(entry.name) and not entry.is_dir(follow_symlinks=False)


def _leads_back(folder: str, above: tuple[Path, ...]) -> bool:
    real = Path(folder).resolve()
    return any(each.is_relative_to(real) for each in above)


def _class_folders(root: Path) -> tuple[list[str], bool]:
    folders = []
    has_images = False
    above = (root.resolve(),)
    with os.scandir(root) as entries:
        for entry in entries:
            if _is_image(entry):
                has_images = True
            elif is_dir(entry) and not _leads_back(entry.path, above):
                folders.append(entry.name)
    return sorted(folders), has_images
