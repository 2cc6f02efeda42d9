"""How often numbers are written."""

import pytest
import torch

from t2t.recipes import find_recipe
from t2t.training.distributed import World
from t2t.training.logging.run_logger import WINDOW, RunLogger
from t2t.training.run_folder import RunFolder


@pytest.mark.parametrize(
    ("num_steps", "every"), [(10, 1), (2_000, 20), (10_000, 100), (50_000, WINDOW)]
)
def test_no_step_is_left_out_of_the_rows(num_steps: int, every: int, tmp_path) -> None:
    world = World(0, 1, torch.device("cpu"))
    logger = RunLogger(RunFolder(tmp_path), find_recipe("digits"), world, quiet=True)
    logger.num_steps = num_steps
    assert logger.row_every == every
