"""The images that a command line names: files, folders and lists of them."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TextIO

from t2t.data.decoding.damage import DamagedImage
from t2t.data.image_files import is_unread_name, is_url, walk
from t2t.errors import UserError, first_line, machine_error, on_one_line


def find_images(words: Iterable[str], listed: TextIO) -> Iterator[str | DamagedImage]:
    """Paths of images, or errors, in order; `-` stands for the paths in `listed`."""
    for word in words:
        if word == "-":
            yield from find_images(paths_in(listed), listed)
        elif is_url(word):
            yield DamagedImage(word, "images are not read from URLs; download it first")
        elif os.path.isdir(os.path.expanduser(word)):  # no error without permission
            yield from images_in(word)
        else:
            yield word


def readable_images(words: Iterable[str], listed: TextIO) -> Iterator[str]:
    """Paths of images; raises an error for one that cannot be read."""
    for found in find_images(words, listed):
        if isinstance(found, DamagedImage):
            raise UserError(
                f"{on_one_line(found.name)} cannot be read: {found.reason}."
            )
        yield found


def paths_in(listed: TextIO) -> Iterator[str]:
    """The paths in a list: one per line, or separated by NUL as by `find -print0`."""
    for line in listed:
        text = line
        if "\0" in line:
            text += listed.read()  # such names may contain line breaks
        *names, rest = text.split("\0")
        yield from (name for name in (*names, rest.rstrip("\r\n")) if name)


def images_in(word: str) -> Iterator[str | DamagedImage]:
    """Paths of all images below a folder, and errors."""
    folder = str(Path(word).expanduser())
    errors: list[OSError] = []
    others: list[str] = []
    found = False
    prefix = os.path.join(folder, "")
    for path in walk(folder, prefix, (), errors.append, others.append):
        found = True
        yield path
    unread = [path for path in others if is_unread_name(path)]
    for path in unread:
        yield DamagedImage(path, "this format is not supported; convert it to JPEG")
    for error in errors:
        yield damage(error.filename or word, error)
    if not (found or unread or errors):
        yield DamagedImage(word, "the folder holds no images")


def damage(name: str, error: Exception) -> DamagedImage:
    """Why an image was not read; raises an error if the machine is the reason."""
    if error_of_machine := machine_error(name, error, less="a smaller --batch-size"):
        raise error_of_machine from error
    return DamagedImage(name, getattr(error, "strerror", None) or first_line(error))
