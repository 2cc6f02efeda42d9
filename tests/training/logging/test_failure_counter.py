"""What fails again and again is reported once, with a count."""

from pathlib import Path

import pytest
import torch

from t2t.training.distributed import World
from t2t.training.logging.failure_counter import FailureCounter
from t2t.training.logging.run_logger import RunLogger
from t2t.training.recipe import Recipe
from t2t.training.run_folder import RunFolder

ALONE = World(0, 1, torch.device("cpu"))


def test_a_repeated_failure_is_reported_once_with_a_count() -> None:
    reported: list[str] = []
    failures = FailureCounter(reported.append)
    for number in range(12):
        failures.failed("A file could not be written", f"File {number}: no room.")
    assert reported == [
        "File 0: no room.",
        "A file could not be written 10 times so far.",
    ]
    failures.close()
    assert reported[2:] == ["A file could not be written 12 times in all."]


def test_what_works_again_may_fail_again() -> None:
    reported: list[str] = []
    failures = FailureCounter(reported.append)
    for _ in range(2):
        failures.recovered("It failed")
        failures.failed("It failed", "No room.")
        failures.failed("It failed", "No room.")
    failures.recovered("It failed")
    failures.close()
    assert reported == ["No room.", "It failed 2 times; now it works again."] * 2


def test_a_log_that_cannot_be_written_is_reported_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_folder = RunFolder(tmp_path)
    run_folder.log.mkdir()
    recipe = Recipe(name="own", model="t2t_vit_7_32", data="photos")
    with RunLogger(run_folder, recipe, ALONE) as logger:
        logger.resume(0, 9)
        for step in range(5):
            logger.write(step, {"loss": 1.0})
            logger.info(f"step {step}")
    reported = capsys.readouterr().out
    assert reported.count("The log could not be written") == 2
    assert (
        "The log could not be written (Is a directory); training continues" in reported
    )
    assert "The log could not be written 5 times in all." in reported
