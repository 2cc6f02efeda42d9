"""The folder for what is kept between commands."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """T2T_CACHE, else ~/.cache/t2t."""
    given = os.environ.get("T2T_CACHE")
    return Path(given) if given else Path.home() / ".cache" / "t2t"
