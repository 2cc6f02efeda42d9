"""Damaged files are read or refused, by the script that tries thousands of them."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_few_damaged_files_are_read_or_refused() -> None:
    script = ROOT / "benchmarks" / "mutations.py"
    done = subprocess.run(
        [sys.executable, str(script), "--images", "20", "--weights", "10"],
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for command in ("predict", "train", "load", "show"):
        assert f"\n{command} " in f"\n{done.stdout}"
