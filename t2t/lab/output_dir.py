"""Where records and shipped models are written, and what they call their data."""

import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from t2t.errors import UserError
from t2t.training.run_folder import leaving_none_empty


@contextmanager
def writing_into(
    folder: Path, advice: str = "make room, or give --into another folder"
) -> Iterator[None]:
    """Makes a folder to write into; a full disk, or a file there, is told as such.

    Folders that are new, and into which nothing was written, go again.
    """
    try:
        with leaving_none_empty(folder):
            folder.mkdir(parents=True, exist_ok=True)
            yield
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{folder} cannot be written ({reason}); {advice}.") from error


def renamed(told: Any, path: str, name: str) -> Any:
    """Text, or JSON, with a name in place of the data's path on one's own machine."""
    if isinstance(told, dict):
        return {
            key: name if (key, value) == ("data", path) else renamed(value, path, name)
            for key, value in told.items()
        }
    if isinstance(told, list):
        return [renamed(value, path, name) for value in told]
    if not isinstance(told, str):
        return told
    # A path is told by its slashes. A bare name may be a recipe's as well, as in
    # `t2t train digits`, and is the data's only where that is said.
    before = r"(?<![\w./-])" if "/" in path else r"(?:(?<=data[ =])|(?<= of ))"
    forms = {shlex.quote(path): shlex.quote(name), path: name}
    either = "|".join(map(re.escape, forms))
    whole = re.compile(rf"{before}(?:{either})(?![\w-]|\.\w)")
    return whole.sub(lambda found: forms[found[0]], told)
