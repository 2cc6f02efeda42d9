"""Notes after a run: the confidence interval, and a test split to evaluate on."""

import shlex
from pathlib import Path
from typing import Any

from t2t.data.sources.opening import find
from t2t.errors import UserError
from t2t.training.forecast.advice import FEW_TO_VALIDATE, confidence_interval
from t2t.training.logging.metrics import read_rows
from t2t.training.run_folder import METRICS, read_recipe


def remarks(folder: Path, summary: dict[str, Any]) -> str:
    """Lines on the confidence interval, and on a test split that was not used."""
    notes = []
    counts = [row["num_images"] for row in read_rows(folder / METRICS) if "top1" in row]
    num_images = counts[-1] if counts and isinstance(counts[-1], int) else None
    if num_images and num_images < FEW_TO_VALIDATE:
        low, high = confidence_interval(summary["top1"], num_images)
        notes.append(
            f"{num_images:,} validation images: the 95 % confidence interval of top-1 "
            f"is {low:.1f} to {high:.1f} %."
        )
    if has_unseen_test(folder):
        command = f"t2t eval {shlex.quote(str(folder))} --split test"
        notes.append(f"The data has a test split that this run did not use: {command}")
    return "\n".join(f"{line}\n" for line in notes)


def has_unseen_test(folder: Path) -> bool:
    """Whether the data of a run has a test split that was not used for validation."""
    recipe = read_recipe(folder)
    try:
        splits = find(recipe.data).openers
    except UserError:  # the data is no longer there
        return False
    return "test" in splits and ("val" in splits or recipe.holdout > 0)
