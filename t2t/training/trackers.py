"""Trackers: other places that want a run's numbers, where they are installed."""

import importlib.util
import os
from typing import Any

from t2t.training.folder import RunFolder


class TensorBoardTracker:
    """Numbers into TensorBoard's files beside the metrics."""

    def __init__(self, place: RunFolder) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(place.path / "tensorboard"))

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


def open_trackers(place: RunFolder) -> list[Any]:
    """The trackers that are installed; wandb only where it is configured."""
    trackers: list[Any] = []
    if importlib.util.find_spec("tensorboard") is not None:
        trackers.append(TensorBoardTracker(place))
    configured = "WANDB_API_KEY" in os.environ or "WANDB_MODE" in os.environ
    if configured and importlib.util.find_spec("wandb") is not None:
        trackers.append(WandbTracker(place))
    return trackers
