"""Folders that records and shipped models are written into."""

import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from t2t.errors import UserError
from t2t.training.run_files import remove_if_empty


@contextmanager
def writing_into(
    folder: Path, advice: str = "free some space, or give --out another folder"
) -> Iterator[None]:
    """Creates a folder to write into; an OS error becomes a UserError.

    New folders that stay empty are removed.
    """
    try:
        with remove_if_empty(folder):
            folder.mkdir(parents=True, exist_ok=True)
            yield
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{folder} cannot be written ({reason}); {advice}.") from error


def file_names(folder: Path) -> set[str]:
    """The names in a folder; none if it does not exist."""
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


def renamed(content: Any, path: str, name: str) -> Any:
    """Text or JSON with a name instead of the data's path."""
    if isinstance(content, dict):
        return {
            key: name if (key, value) == ("data", path) else renamed(value, path, name)
            for key, value in content.items()
        }
    if isinstance(content, list):
        return [renamed(value, path, name) for value in content]
    if not isinstance(content, str):
        return content
    # A path has slashes. A bare name may also be a recipe's, as in `t2t train digits`,
    # so it is replaced only where the text says that it is data.
    before = r"(?<![\w./-])" if "/" in path else r"(?:(?<=data[ =])|(?<= of ))"
    forms = {shlex.quote(path): shlex.quote(name), path: name}
    either = "|".join(map(re.escape, forms))
    whole = re.compile(rf"{before}(?:{either})(?![\w-]|\.\w)")
    return whole.sub(lambda found: forms[found[0]], content)
