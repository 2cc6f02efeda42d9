"""What is said after a run: how sure its accuracy is, and what to test it with."""

import shlex
from pathlib import Path
from typing import Any

from t2t.data.sources.opening import find
from t2t.errors import UserError
from t2t.training.folder import METRICS, read_recipe
from t2t.training.forecasting.advice import FEW_TO_VALIDATE, margin
from t2t.training.telling.metrics import read_rows


def remarks(folder: Path, summary: dict[str, Any]) -> str:
    """Lines on few validation images, and on a test split that the run did not see."""
    told = []
    counts = [row["num_images"] for row in read_rows(folder / METRICS) if "top1" in row]
    num_images = counts[-1] if counts and isinstance(counts[-1], int) else None
    if num_images and num_images < FEW_TO_VALIDATE:
        points = margin(summary["top1"], num_images)
        told.append(
            f"{num_images:,} validation images: top-1 is {summary['top1']:.2f} ± "
            f"{points:.1f} % by chance alone."
        )
    if has_unseen_test(folder):
        command = f"t2t eval {shlex.quote(str(folder))} --split test"
        told.append(f"The data has a test split that this run did not see: {command}")
    return "\n".join(f"{line}\n" for line in told)


def has_unseen_test(folder: Path) -> bool:
    """Whether the data of a run has a test split beside what it was validated by."""
    recipe = read_recipe(folder)
    try:
        splits = find(recipe.data).openers
    except UserError:  # the data has gone since
        return False
    return "test" in splits and ("val" in splits or recipe.hold_out > 0)
