"""The result of a training run."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Result:
    """The result of a call of `train`."""

    folder: Path
    finished: bool
    summary: dict[str, Any]
    already_finished: bool = False
    """Whether the run was finished before the call."""
    stop_requested: bool = False
    """Whether Ctrl-C, SIGTERM or SIGHUP was received, even if too late to matter."""
    folds: tuple["Result", ...] = ()
    """The results of the folds of a cross-validation."""
    notes: tuple[str, ...] = ()
    """What has changed since the run was finished, a sentence each."""

    def __repr__(self) -> str:
        name = str(self.summary.get("metric"))
        score = self.summary.get(name)
        shown = "" if score is None else f", {name}={score:g}"
        return f"Result(folder={str(self.folder)!r}, finished={self.finished}{shown})"
