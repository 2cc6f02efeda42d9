"""What fails again and again is reported once, with a count."""

from pathlib import Path

import pytest
import torch

from t2t.training.checkpoint_files import checkpoints
from t2t.training.checkpoint_writer import CheckpointWriter
from t2t.training.distributed import World
from t2t.training.logging.failure_counter import FailureCounter
from t2t.training.logging.run_logger import RunLogger
from t2t.training.recipe import Recipe
from t2t.training.run_folder import RunFolder
from t2t.training.state import Snapshot

ALONE = World(0, 1, torch.device("cpu"))


def test_a_repeated_failure_is_reported_once_with_a_count() -> None:
    told: list[str] = []
    failures = FailureCounter(told.append)
    for number in range(12):
        failures.failed("A file could not be written", f"File {number}: no room.")
    assert told == ["File 0: no room.", "A file could not be written 10 times so far."]
    failures.close()
    assert told[2:] == ["A file could not be written 12 times in all."]


def test_what_works_again_may_fail_anew() -> None:
    told: list[str] = []
    failures = FailureCounter(told.append)
    for _ in range(2):
        failures.recovered("It failed")
        failures.failed("It failed", "No room.")
        failures.failed("It failed", "No room.")
    failures.recovered("It failed")
    failures.close()
    assert told == ["No room.", "It failed 2 times; now it works again."] * 2


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
    told = capsys.readouterr().out
    assert told.count("The log could not be written") == 2
    assert "The log could not be written (Is a directory); training continues" in told
    assert "The log could not be written 5 times in all." in told


def test_checkpoints_that_fail_again_and_again_are_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    told: list[str] = []
    with CheckpointWriter(tmp_path / "last", ALONE, told.append) as writer:
        with monkeypatch.context() as patch:
            patch.setattr("torch.distributed.checkpoint.filesystem._write_item", full)
            for step in range(3):
                writer.save(Snapshot({"model/x": torch.zeros(2)}, {"step": step}))
            writer.finish()
        writer.save(Snapshot({"model/x": torch.zeros(2)}, {"step": 3}))
    assert len(checkpoints(tmp_path / "last")) == 1
    assert len(told) == 2
    assert told[0].startswith("The checkpoint of step 0 could not be written (")
    assert told[1] == "A checkpoint could not be written 3 times; now it works again."
