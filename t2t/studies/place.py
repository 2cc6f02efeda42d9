"""Folders that records and shipped models are written into."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from t2t.errors import UserError
from t2t.training.folder import leaving_none_empty


@contextmanager
def writing_into(folder: Path) -> Iterator[None]:
    """Makes a folder to write into; a full disk, or a file there, is told as such.

    Folders that are new, and into which nothing was written, go again.
    """
    try:
        with leaving_none_empty(folder):
            folder.mkdir(parents=True, exist_ok=True)
            yield
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(
            f"{folder} cannot be written ({reason}); make room, or give --into another "
            "folder."
        ) from error
