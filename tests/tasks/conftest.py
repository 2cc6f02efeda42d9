"""Tiny runs, as the tests of training have them."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "training"))

from tiny_runs import *  # noqa: F403
