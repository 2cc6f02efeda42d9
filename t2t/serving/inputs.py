"""The images that a command line names: files, folders and lists of them."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TextIO

from t2t.data.damage import DamagedImage
from t2t.data.sources.folder import is_image_name


def find_images(words: Iterable[str], listed: TextIO) -> Iterator[str | DamagedImage]:
    """Paths of images, or what is wrong, in order; `-` stands for lines of `listed`."""
    for word in words:
        if word == "-":
            lines = (line.rstrip("\r\n") for line in listed)
            yield from find_images((line for line in lines if line), listed)
        elif Path(word).expanduser().is_dir():
            found = False
            for path in walk(str(Path(word).expanduser())):
                found = True
                yield path
            if not found:
                yield DamagedImage(word, "the folder holds no images")
        else:
            yield word


def walk(folder: str) -> Iterator[str]:
    """All images below a folder, by name; links are followed, but never in circles."""
    seen = set()
    for place, folders, files in os.walk(folder, followlinks=True):
        real = os.path.realpath(place)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (
            os.path.join(place, name) for name in sorted(files) if is_image_name(name)
        )
