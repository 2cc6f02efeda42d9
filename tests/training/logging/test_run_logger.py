"""How often numbers are written."""

import math

import pytest
import torch

from t2t.recipes import find_recipe
from t2t.training.distributed import World
from t2t.training.logging.recent_numbers import WINDOW, RecentNumbers
from t2t.training.logging.run_logger import RunLogger
from t2t.training.run_folder import RunFolder


@pytest.mark.parametrize(
    ("num_steps", "every"), [(10, 1), (2_000, 20), (10_000, 100), (50_000, WINDOW)]
)
def test_no_step_is_left_out_of_the_rows(num_steps: int, every: int, tmp_path) -> None:
    world = World(0, 1, torch.device("cpu"))
    logger = RunLogger(RunFolder(tmp_path), find_recipe("digits"), world, quiet=True)
    logger.num_steps = num_steps
    assert logger.row_every == every


def test_means_are_over_the_last_finite_values() -> None:
    recent = RecentNumbers()
    assert math.isnan(recent.mean("loss"))
    for value in (1e9, *range(WINDOW - 1), math.inf):
        recent.add({"entropy": 1.0, "loss": value})
    assert recent.means() == {"loss": (WINDOW - 2) / 2, "entropy": 1.0}
    assert [*recent.means()] == ["loss", "entropy"]
    resumed = RecentNumbers()
    resumed.load_state_dict(recent.state_dict())
    for each in (recent, resumed):
        each.add({"loss": 7.0})
    assert resumed.means() == recent.means()
