"""Writes the page of mistakes after training, if that is quick."""

from pathlib import Path
from typing import Any

from t2t.error_analysis.evaluate import evaluate
from t2t.errors import UserError
from t2t.screen import show_progress
from t2t.torchrun import env_count
from t2t.training.logging.metrics import read_rows
from t2t.training.run_files import METRICS, MISTAKES
from t2t.training.saved_run import read_recipe

MAX_VALIDATION_IMAGES = 5_000
MAX_TRAINING_IMAGES = 50_000
"""For larger sets, run `t2t eval --report`."""
MAX_SHARE = 0.05
FREE_SECONDS = 10
"""The page may take this long, or this share of the training time."""
_STEP_COST = 3
"""A training step costs about three forward passes."""


def write_report(folder: Path, summary: dict[str, Any], device: str | None) -> str:
    """Writes the page into the run folder if that is quick; returns why it failed."""
    if not is_quick(folder, summary):
        return ""
    try:
        with show_progress("finding mistakes") as progress:
            evaluation = evaluate(folder, device=device, progress=progress)
            evaluation.save_report(folder / MISTAKES)
    except UserError as error:
        return f"The page of mistakes was not written: {error}"
    return ""


def is_quick(folder: Path, summary: dict[str, Any]) -> bool:
    """Whether a page takes seconds, or a small share of the training time."""
    if "top1" not in summary or env_count("WORLD_SIZE") > 1:
        return False
    counts = [row["num_images"] for row in read_rows(folder / METRICS) if "top1" in row]
    rate = summary["images_per_second"]
    if not counts or not isinstance(counts[-1], int) or not rate:
        return False
    num_trained = summary["steps"] * read_recipe(folder).batch_size / summary["epochs"]
    if counts[-1] > MAX_VALIDATION_IMAGES or num_trained > MAX_TRAINING_IMAGES:
        return False
    seconds = (counts[-1] + num_trained) / (_STEP_COST * rate)
    return bool(seconds <= max(FREE_SECONDS, MAX_SHARE * 60 * summary["train_minutes"]))
