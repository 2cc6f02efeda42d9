"""Image files: their names, the folders that hold them, and their bytes."""

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from t2t.data.decoding.headers import IMAGE_SUFFIXES, UNREAD_SUFFIXES
from t2t.errors import UserError

_NONBLOCK = getattr(os, "O_NONBLOCK", 0)
# Made by macOS, network storage (with thumbnails), Windows and Linux.
_SYSTEM_FOLDERS = frozenset(
    ("__MACOSX", "@eaDir", "$RECYCLE.BIN", "System Volume Information", "lost+found")
)


def read_whole(path: str | os.PathLike[str]) -> bytes:
    """The content of a regular file; pipes and devices, which may not end, raise."""
    with open(path, "rb", buffering=0, opener=_open_nonblocking) as file:
        descriptor = file.fileno()
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        if _NONBLOCK:  # wait for a file that an archive must first fetch
            os.set_blocking(descriptor, True)
        return file.read()


def _open_nonblocking(path: str, flags: int) -> int:
    """Opens without waiting, even a pipe without a writer."""
    return os.open(path, flags | _NONBLOCK)


def is_url(path: str) -> bool:
    """Whether this is a URL and not a path."""
    return "://" in path


@contextmanager
def permitted() -> Iterator[None]:
    """Turns a PermissionError into a UserError that names the file."""
    try:
        yield
    except PermissionError as error:
        raise UserError(
            f"{error.filename} may not be read: change its permissions, or move it out "
            "of the data."
        ) from error


def suffix_of(path: str) -> str:
    """The suffix of a path in lower case."""
    """The suffix of a path in lower case."""
    return os.path.splitext(path)[1].lower()


def is_image_name(path: str) -> bool:
    """Whether a file has the suffix of an image and is not hidden."""
    return has_suffix(IMAGE_SUFFIXES, path)


def is_unread_name(path: str) -> bool:
    """Whether a file has the suffix of an image format that is not supported."""
    return has_suffix(UNREAD_SUFFIXES, path)


def has_suffix(suffixes: frozenset[str], path: str) -> bool:
    """Whether a file has one of these suffixes and is not hidden."""
    """Whether a file has one of these suffixes and is not hidden."""
    return suffix_of(path) in suffixes and not os.path.basename(path).startswith(".")


def is_dir(entry: os.DirEntry[str]) -> bool:
    """Whether this is a folder, or a link to one; hidden and system folders are not."""
    if entry.name.startswith(".") or entry.name in _SYSTEM_FOLDERS:
        return False
    # For a link to itself, entry.is_dir() would raise an error.
    return os.path.isdir(entry.path) if entry.is_symlink() else entry.is_dir()


def walk(
    folder: str,
    prefix: str = "",
    above: tuple[Path, ...] = (),
    on_error: Callable[[OSError], None] | None = None,
    on_other: Callable[[str], None] = lambda path: None,
) -> Iterator[str]:
    """All images below a folder, sorted, with `prefix` before each path.

    Links are followed, but not to a folder that contains them; `above` are the folders
    that contain this one. `on_error`, if given, is called for folders that cannot be
    read, `on_other` for files that are not images.
    """
    above = (*above, Path(folder).resolve())
    images = []
    others = []
    deeper = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if is_image(entry):
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
        if not contains_any(inner, above):
            inside = f"{prefix}{name}{os.sep}"
            yield from walk(inner, inside, above, on_error, on_other)


def files_below(folder: str, suffix: str) -> list[str]:
    """All files below a folder with this suffix, sorted; no images, none hidden."""
    others: list[str] = []
    for _ in walk(folder, on_other=others.append):
        pass
    return sorted(path for path in others if has_suffix(frozenset((suffix,)), path))


def is_image(entry: os.DirEntry[str]) -> bool:
    """Whether an entry of a folder is a file with the name of an image."""
    """Whether an entry of a folder is a file with the name of an image."""
    # The target of a link is not checked: that would read the disk again.
    return is_image_name(entry.name) and not entry.is_dir(follow_symlinks=False)


def contains_any(folder: str, above: tuple[Path, ...]) -> bool:
    """Whether a folder, behind links, contains one of the folders above it."""
    real = Path(folder).resolve()
    return any(each.is_relative_to(real) for each in above)
