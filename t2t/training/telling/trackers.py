"""Trackers: other places that want a run's numbers, where they are installed."""

import importlib.util
import os
from typing import Any

from t2t.training.folder import RunFolder


class TensorBoardTracker:
    """Numbers into TensorBoard's files beside the metrics."""

    def __init__(self, place: RunFolder, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # What an earlier process wrote of later steps is hidden: they are done again.
        folder = str(place.path / "tensorboard")
        self.writer = SummaryWriter(folder, purge_step=step + 1)

    def log(self, step: int, row: dict[str, Any]) -> None:
        for key, value in row.items():
            if isinstance(value, int | float) and key != "step":
                self.writer.add_scalar(key, value, step)

    def close(self) -> None:
        self.writer.close()


class WandbTracker:
    """Numbers into a wandb run, where its user is logged in or offline by choice."""

    def __init__(self, place: RunFolder) -> None:
        import wandb

        self.run = wandb.init(
            project="t2t", name=place.path.name, dir=place.path, resume="allow"
        )

    def log(self, step: int, row: dict[str, Any]) -> None:
        self.run.log(row, step=step)

    def close(self) -> None:
        self.run.finish()


def open_trackers(place: RunFolder, step: int) -> list[Any]:
    """The trackers that are installed; wandb only where it is configured.

    `step` is the last one that is done, and will not be done again.
    """
    trackers: list[Any] = []
    if importlib.util.find_spec("tensorboard") is not None:
        trackers.append(TensorBoardTracker(place, step))
    configured = "WANDB_API_KEY" in os.environ or "WANDB_MODE" in os.environ
    if configured and importlib.util.find_spec("wandb") is not None:
        trackers.append(WandbTracker(place))
    return trackers
