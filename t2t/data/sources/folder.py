"""Images in folders named for their classes."""

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np

from t2t.data.decoding.headers import (
    COMMON_SUFFIXES,
    IMAGE_SUFFIXES,
    UNREAD_SUFFIXES,
)
from t2t.data.sources.base import FileSource, Openers, no_labels
from t2t.data.sources.filenames import SPLIT_NAMES
from t2t.errors import UserError, on_one_line

_SHARDS = frozenset((".tar",))
_KNOWN = ", ".join(COMMON_SUFFIXES[:6])
# What zips of a Mac, network disks (with small copies of images) and Windows add.
_SYSTEMS_OWN = frozenset(
    ("__MACOSX", "@eaDir", "$RECYCLE.BIN", "System Volume Information", "lost+found")
)


def find_folder_splits(root: Path, labels: bool = True) -> Openers:
    """Each split of an image folder by name, or the whole as "all"."""
    folders = {entry.name.lower(): entry for entry in os.scandir(root) if is_dir(entry)}
    splits = {}
    for split, names in SPLIT_NAMES.items():
        for name in names:
            if name in folders:
                splits[split] = partial(open_folder, Path(folders[name].path), labels)
                break
    # A class may be called "test": only a training folder makes these splits, or that
    # there is nothing else and they hold folders in place of images.
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
    """Whether its folders are those of classes: several, and images in each."""
    folders, *_ = class_folders(root)
    above = (root.resolve(),)
    inner = (walk(str(root / name), above=above) for name in folders)
    return len(folders) > 1 and all(any(True for _ in images) for images in inner)


def open_folder(root: Path, labels: bool = True) -> FileSource:
    """One folder whose subfolders are the classes, in the order of their names.

    Without `labels`, the images may be anywhere in it: the source has classes only if
    all images are in class folders.
    """
    folders, loose, beside = class_folders(root)
    if labels and not folders:
        if loose:
            raise UserError(
                f"{root} holds images but no class folders: put the images of each "
                f"class into a folder named for it, as in {root}/cat/1.jpg, or train "
                f"with a task that needs no labels.{_if_a_class(root)}"
            )
        raise UserError(
            f"{root} holds no folders: it should hold one folder of images per class. "
            f"{' '.join(notes_on(beside))}".rstrip()
        )
    above = (root.resolve(),)
    # Listing waits for the disk, which several threads do at once.
    with ThreadPoolExecutor(16) as pool:
        places = [str(root / name) for name in folders]
        found = list(pool.map(lambda place: _listed(place, above), places))
    counts = [len(images) for images, _ in found]
    others = [*beside, *(path for _, some in found for path in some)]
    notes = (*note_on_lost(beside), *notes_on(others))
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
        notes = (*note_on_loose(loose), *notes)
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


def _if_a_class(root: Path) -> str:
    """A closing sentence on a folder that a class may be named for and a split is."""
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


def note_on_loose(images: list[str]) -> tuple[str, ...]:
    """A sentence on images that lie beside the class folders, where some do."""
    if not images:
        return ()
    lie = "it lies" if len(images) == 1 else "they lie"
    return (
        f"{_passed_over(images, 'images')}: {lie} beside the class folders; move each "
        "into that of its class.",
    )


def note_on_lost(beside: list[str]) -> tuple[str, ...]:
    """A sentence on links beside the class folders that lead nowhere, if any do."""
    links = [path for path in beside if os.path.islink(path)]
    lost = [path for path in links if not os.path.exists(path)]
    if not lost:
        return ()
    end = "it is a link that leads" if len(lost) == 1 else "these links lead"
    return (f"{_passed_over(lost, 'folders')}: {end} nowhere.",)


def notes_on(others: Iterable[str]) -> tuple[str, ...]:
    """A sentence for each kind of files that may be meant and are passed over."""
    kinds: dict[str, list[str]] = {}
    for path in others:
        if is_unread_name(path) or _is_called(_SHARDS, path):
            kinds.setdefault(_suffix(path), []).append(path)
    return tuple(_note_on(suffix, paths) for suffix, paths in kinds.items())


def _note_on(suffix: str, paths: list[str]) -> str:
    which = _passed_over(paths, f"{suffix} files")
    if suffix in _SHARDS:
        return f"{which}: the images in the class folders are the data."
    them = "it" if len(paths) == 1 else "them"
    return f"{which}: images of this kind are not read; convert {them} to JPEG or PNG."


def _passed_over(paths: list[str], kind: str) -> str:
    """How many are, and the first of them."""
    first = on_one_line(paths[0])
    if len(paths) == 1:
        return f"{first} is passed over"
    return f"{len(paths):,} {kind} ({first}, …) are passed over"


def _suffix(path: str) -> str:
    return os.path.splitext(path)[1].lower()


def is_image_name(path: str) -> bool:
    """Whether a file is called an image and is not hidden."""
    return _is_called(IMAGE_SUFFIXES, path)


def is_unread_name(path: str) -> bool:
    """Whether a file is called an image of a kind that is not read."""
    return _is_called(UNREAD_SUFFIXES, path)


def _is_called(suffixes: frozenset[str], path: str) -> bool:
    return _suffix(path) in suffixes and not os.path.basename(path).startswith(".")


def is_dir(entry: os.DirEntry[str]) -> bool:
    """Whether this is a folder, or a link to one, and neither hidden nor a system's."""
    if entry.name.startswith(".") or entry.name in _SYSTEMS_OWN:
        return False
    # Of a link that leads to itself the entry would say so with an error.
    return os.path.isdir(entry.path) if entry.is_symlink() else entry.is_dir()


def walk(
    folder: str,
    prefix: str = "",
    above: tuple[Path, ...] = (),
    on_error: Callable[[OSError], None] | None = None,
    on_other: Callable[[str], None] = lambda path: None,
) -> Iterator[str]:
    """All images below a folder, in order, each path begun with `prefix`.

    A link is followed, but not back to a folder that it lies in; `above` are those on
    the way here. `on_error` is told of folders that cannot be read, in place of a stop,
    and `on_other` of files that are no images to read.
    """
    above = (*above, Path(folder).resolve())
    images = []
    others = []
    deeper = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if _is_image(entry):
                    images.append(prefix + entry.name)
                elif is_dir(entry):
                    deeper.append(entry.name)
                else:
                    others.append(entry.path)
    except OSError as error:
        if on_error is None:
            raise
        on_error(error)
    yield from sorted(images)
    for path in sorted(others):
        on_other(path)
    for name in sorted(deeper):
        inner = os.path.join(folder, name)
        if not _leads_back(inner, above):
            inside = f"{prefix}{name}{os.sep}"
            yield from walk(inner, inside, above, on_error, on_other)


def files_below(folder: str, suffix: str) -> list[str]:
    """All other files below a folder that end so and are not hidden, in order."""
    others: list[str] = []
    for _ in walk(folder, on_other=others.append):
        pass
    return sorted(path for path in others if _is_called(frozenset((suffix,)), path))


def _is_image(entry: os.DirEntry[str]) -> bool:
    # A link is taken at its name: to ask where it leads costs a look at the disk.
    return is_image_name(entry.name) and not entry.is_dir(follow_symlinks=False)


def _leads_back(folder: str, above: tuple[Path, ...]) -> bool:
    real = Path(folder).resolve()
    return any(each.is_relative_to(real) for each in above)


def class_folders(root: Path) -> tuple[list[str], list[str], list[str]]:
    """Names of the folders, and paths of the images and other files beside them."""
    folders = []
    images = []
    others = []
    above = (root.resolve(),)
    with os.scandir(root) as entries:
        for entry in entries:
            if _is_image(entry):
                images.append(entry.path)
            elif not is_dir(entry):
                others.append(entry.path)
            elif not _leads_back(entry.path, above):
                folders.append(entry.name)
    return sorted(folders), sorted(images), sorted(others)
