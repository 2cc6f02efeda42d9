"""The numbers of a run: metrics.jsonl, curves.png, and experiment trackers."""

from contextlib import suppress
from pathlib import Path
from typing import Any

from t2t.errors import first_line
from t2t.tasks import Metric
from t2t.training.logging.curves import draw_curves
from t2t.training.logging.failure_counter import FailureCounter
from t2t.training.logging.messages import Messages, write_failure
from t2t.training.logging.metrics import MetricsFile, read_rows
from t2t.training.logging.trackers import open_trackers
from t2t.training.run_files import CURVES, METRICS
from t2t.training.run_folder import RunFolder

METRICS_FAILED = f"{METRICS} could not be written"
CURVES_FAILED = f"{CURVES} could not be drawn"


class MetricsLog:
    """Writes rows of numbers once it is opened; a full disk does not stop a run."""

    def __init__(self, run_folder: RunFolder, messages: Messages) -> None:
        self.run_folder, self.warn = run_folder, messages.warn
        self.file: MetricsFile | None = None
        self.trackers: list[Any] = []
        self.failures = FailureCounter(self.warn)

    def open(self, step: int, num_steps: int) -> None:
        """Opens the file, without rows of steps that will be repeated."""
        self.file = MetricsFile(self.run_folder.metrics)
        try:
            self.file.open_until(step, num_steps)
        except OSError as error:
            raise self.run_folder.unwritable(error) from error
        self.trackers = open_trackers(self.run_folder, step, self.warn)

    def close(self) -> None:
        """Closes the file and the trackers."""
        self.failures.close()
        if self.file is not None:
            self.file.close()
        for tracker in self.trackers:
            with suppress(Exception):
                tracker.close()

    def restore(self) -> list[Path]:
        """Rewrites the file if it was removed; returns it if it was."""
        if self.file is None or not self.file.is_lost():
            return []
        self.recreate()
        return [] if self.file.is_lost() else [self.run_folder.metrics]

    def recreate(self) -> None:
        """Rewrites the file after the run's folder was removed."""
        if self.file is not None:
            try:
                self.file.recreate()
            except OSError as error:
                self.report_failure(METRICS_FAILED, error)

    def flush(self) -> None:
        """Writes rows that could not be written before."""
        if self.file is not None:
            with suppress(OSError):
                self.file.flush()

    def add(self, row: dict[str, Any]) -> None:
        """Adds a row to the file and to the trackers; it has a `step`."""
        if self.file is not None:
            try:
                self.file.add(row)
                self.failures.recovered(METRICS_FAILED)
            except OSError as error:
                self.report_failure(METRICS_FAILED, error)
        for tracker in [*self.trackers]:
            try:
                tracker.log(row["step"], row)
            except Exception as error:  # any kind: a network, a disk
                self.trackers.remove(tracker)
                name = type(tracker).__name__
                why = getattr(error, "strerror", None) or first_line(error)
                self.warn(f"{name} failed ({why}) and was switched off.")

    def draw(self, title: str, metric: Metric) -> None:
        """Draws the curves of the losses, a metric and the learning rate."""
        folder = self.run_folder
        try:
            draw_curves(read_rows(folder.metrics), title, folder.curves, metric)
            self.failures.recovered(CURVES_FAILED)
        except OSError as error:
            self.report_failure(CURVES_FAILED, error)

    def report_failure(self, failed: str, error: OSError) -> None:
        """Counts a file that could not be written, and warns of it."""
        sentence = write_failure(failed, error, self.run_folder)
        self.failures.failed(failed, sentence)
