"""Folders that records and shipped models are written into."""

from pathlib import Path

from t2t.errors import UserError


def make_folder(into: Path) -> None:
    """The folder and those it lies in, unless something is in the way."""
    try:
        into.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"{into} cannot be a folder ({error.strerror}); give --into another."
        ) from error
