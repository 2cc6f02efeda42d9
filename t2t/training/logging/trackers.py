"""Trackers: other places that want a run's numbers, where they are installed."""

import importlib.util
import os
import secrets
from collections.abc import Callable
from typing import Any

from t2t.errors import first_line
from t2t.training.run_folder import RunFolder, write_page


class TensorBoardTracker:
    """Numbers into TensorBoard's files beside the metrics."""

    def __init__(self, run_folder: RunFolder, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # What an earlier process wrote of later steps is hidden: they are done again.
        folder = str(run_folder.path / "tensorboard")
        self.writer = SummaryWriter(folder, purge_step=step + 1)

    def log(self, step: int, row: dict[str, Any]) -> None:
        for key, value in row.items():
            if isinstance(value, int | float) and key != "step":
                self.writer.add_scalar(key, value, step)

    def close(self) -> None:
        self.writer.close()


class WandbTracker:
    """Numbers into a wandb run, where its user is logged in or offline by choice."""

    def __init__(self, run_folder: RunFolder) -> None:
        import wandb

        self.run = wandb.init(
            project="t2t",
            name=run_folder.path.name,
            dir=run_folder.path,
            id=os.environ.get("WANDB_RUN_ID") or kept_id(run_folder),
            resume="allow",
        )

    def log(self, step: int, row: dict[str, Any]) -> None:
        self.run.log(row, step=step)

    def close(self) -> None:
        self.run.finish()


def kept_id(run_folder: RunFolder) -> str:
    """What wandb knows a run by, so that a resumed one goes on in the same place."""
    kept = run_folder.path / ".wandb-id"
    if not kept.exists():
        write_page(kept, secrets.token_hex(8))
    return kept.read_text()


def open_trackers(
    run_folder: RunFolder, step: int, warn: Callable[[str], None]
) -> list[Any]:
    """The trackers that are installed; wandb only where it is configured.

    `step` is the last one that is done, and will not be done again.
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
        except Exception as error:  # of their own kinds: a network, a key, a disk
            warn(f"Numbers go to one tracker less ({first_line(error)}).")
    return opened
