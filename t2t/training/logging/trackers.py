"""Experiment trackers, if they are installed: TensorBoard and wandb."""

import importlib.util
import os
import secrets
from collections.abc import Callable
from typing import Any

from t2t.errors import first_line
from t2t.training.run_files import write_text
from t2t.training.run_folder import RunFolder


class TensorBoardTracker:
    """Writes TensorBoard's files into the run folder."""

    def __init__(self, run_folder: RunFolder, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # Hides the rows of later steps, which a resumed run writes again.
        folder = str(run_folder.path / "tensorboard")
        self.writer = SummaryWriter(folder, purge_step=step + 1)

    def log(self, step: int, row: dict[str, Any]) -> None:
        for key, value in row.items():
            if isinstance(value, int | float) and key != "step":
                self.writer.add_scalar(key, value, step)

    def close(self) -> None:
        self.writer.close()


class WandbTracker:
    """Logs to a wandb run; the user is logged in, or chose offline mode."""

    def __init__(self, run_folder: RunFolder) -> None:
        import wandb

        self.run = wandb.init(
            project="t2t",
            name=run_folder.path.name,
            dir=run_folder.path,
            id=os.environ.get("WANDB_RUN_ID") or run_id(run_folder),
            resume="allow",
        )

    def log(self, step: int, row: dict[str, Any]) -> None:
        self.run.log(row, step=step)

    def close(self) -> None:
        self.run.finish()


def run_id(run_folder: RunFolder) -> str:
    """The wandb id of a run; a resumed run has the same."""
    path = run_folder.path / ".wandb-id"
    if not path.exists():
        write_text(path, secrets.token_hex(8))
    return path.read_text()


def open_trackers(
    run_folder: RunFolder, step: int, warn: Callable[[str], None]
) -> list[Any]:
    """The trackers that are installed; wandb only if it is configured.

    `step` is the last finished step.
    """
    wanted: list[Callable[[], Any]] = []
    if importlib.util.find_spec("tensorboard") is not None:
        wanted.append(lambda: TensorBoardTracker(run_folder, step))
    configured = "WANDB_API_KEY" in os.environ or "WANDB_MODE" in os.environ
    if configured and importlib.util.find_spec("wandb") is not None:
        wanted.append(lambda: WandbTracker(run_folder))
    opened = []
    for tracker in wanted:
        try:
            opened.append(tracker())
        except Exception as error:  # any kind: a network, a key, a disk
            warn(f"A tracker could not be started ({first_line(error)}).")
    return opened
