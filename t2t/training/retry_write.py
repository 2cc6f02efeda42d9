"""Waits for disk space at the end of a run."""

import time
from collections.abc import Callable
from pathlib import Path

from t2t.errors import UserError
from t2t.formatting import duration
from t2t.models.saving import write_reason

WAIT_SECONDS = 300.0
"""How long a finished run waits for disk space."""
RETRY_SECONDS = 5.0


def retry_write(
    write: Callable[[], None],
    folder: Path,
    warn: Callable[[str], None],
    is_stopped: Callable[[], bool],
) -> Exception | None:
    """Calls `write` until it succeeds; returns its last error after a time limit."""
    end = time.monotonic() + WAIT_SECONDS
    is_reported = False
    while True:
        try:
            write()
            return None
        except (OSError, UserError) as error:
            if is_stopped() or time.monotonic() >= end:
                return error
            if not is_reported:
                warn(
                    f"{folder} cannot be written ({why(error)}): free some disk space. "
                    f"Retrying for {duration(WAIT_SECONDS)}; Ctrl-C stops."
                )
            is_reported = True
            time.sleep(RETRY_SECONDS)


def why(error: Exception) -> str:
    """The reason of an error, without advice and a full stop."""
    return write_reason(error.__cause__ or error).rstrip(".")
