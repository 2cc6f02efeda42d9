"""Studies train, die, go on, and tell what they came to."""

import json
import os
import pickle
import signal
import statistics
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from t2t.data.sources import Splits
from t2t.errors import UserError
from t2t.lab.studies.results import costs_of, gather
from t2t.lab.studies.run import run_study
from t2t.lab.studies.study import Study
from t2t.training.loaders import open_data
from t2t.training.logging.metrics import read_rows
from t2t.training.logging.run_logger import RunLogger
from t2t.training.recipe import Recipe
from t2t.training.result import Result
from t2t.training.run_folder import RunFolder
from t2t.training.runtime import Runtime

CPU = Runtime(device="cpu", compile="off", workers=1)

DYING = """
import os, pickle, signal, sys
from t2t.lab.studies.run import run_study
from t2t.training.logging.run_logger import RunLogger

study, folder, machine = pickle.load(sys.stdin.buffer)
plain = RunLogger.log_evaluation

def log_evaluation(self, step, epoch, *scores):
    if (self.recipe.seed, self.recipe.name, epoch) == (1, "tiny.patches", 2):
        os.kill(os.getpid(), signal.SIGKILL)
    return plain(self, step, epoch, *scores)

RunLogger.log_evaluation = log_evaluation
run_study(study, (0, 1), folder, runtime=machine, quiet=True)
"""


def result_of(folder: Path, name: str, seed: int) -> Path:
    return folder / "runs" / f"{name}-seed{seed}" / "result.json"


def test_a_killed_study_goes_on(tiny_study: Study, tmp_path: Path) -> None:
    killed = subprocess.run(
        [sys.executable, "-c", DYING],
        input=pickle.dumps((tiny_study, tmp_path, CPU)),
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    # All but the last run were done, and their table written; that one died midway.
    early = json.loads((tmp_path / "tiny_tokens/table.json").read_text())
    assert early["missing_runs"] == 1
    assert [[*arm["top1"]["by_seed"]] for arm in early["arms"]] == [["0", "1"], ["0"]]
    assert early["findings"][0]["verdict"] == "undecided"
    done = [result_of(tmp_path, name, 0) for name in ("tiny", "tiny.patches")]
    written = [path.stat().st_mtime_ns for path in done]
    assert not result_of(tmp_path, "tiny.patches", 1).exists()

    told: list[str] = []
    result = run_study(
        tiny_study, (0, 1), tmp_path, runtime=CPU, warn=told.append, quiet=True
    )
    assert told == ["tiny_tokens: arm patches, seed 1 (run 4 of 4)"]
    assert [path.stat().st_mtime_ns for path in done] == written
    rows = read_rows(tmp_path / "runs/tiny.patches-seed1/metrics.jsonl")
    assert [row["epoch"] for row in rows if "epoch" in row] == [1, 2]
    assert result.num_missing == 0

    page = (tmp_path / "tiny_tokens/table.md").read_text()
    numbers = json.loads((tmp_path / "tiny_tokens/table.json").read_text())
    assert numbers["missing_runs"] == 0
    assert "Not complete" not in page
    means = {}
    for arm, name in zip(numbers["arms"], ("tiny", "tiny.patches"), strict=True):
        runs = [
            json.loads(result_of(tmp_path, name, seed).read_text()) for seed in (0, 1)
        ]
        first, second = (run["top1"] for run in runs)
        mean, spread = (first + second) / 2, abs(first - second) / 2**0.5
        means[arm["arm"]] = mean
        assert arm["top1"]["by_seed"] == {"0": first, "1": second}
        assert arm["top1"]["mean"] == pytest.approx(mean, abs=1e-4)
        assert arm["top1"]["std"] == pytest.approx(spread, abs=1e-4)
        assert arm["parameters"] == runs[0]["parameters"]
        assert f"| {mean:.2f} ± {spread:.2f} |" in page
    (finding,) = numbers["findings"]
    assert finding["difference"] == pytest.approx(
        means["t2t"] - means["patches"], abs=1e-4
    )
    assert f"- {finding['sentence']}" in page
    assert (tmp_path / "tiny_tokens/picture.png").stat().st_size > 5_000


def press_ctrl_c(monkeypatch: pytest.MonkeyPatch, *, seed: int, epoch: int) -> None:
    """Ctrl-C after an epoch of the runs of one seed."""
    plain = RunLogger.log_evaluation

    def interrupted(self: RunLogger, step: int, number: int, *scores: Any) -> Any:
        row = plain(self, step, number, *scores)
        if (self.recipe.seed, number) == (seed, epoch):
            os.kill(os.getpid(), signal.SIGINT)
        return row

    monkeypatch.setattr(RunLogger, "log_evaluation", interrupted)


def test_ctrl_c_at_the_very_end_of_a_run_begins_no_other(
    tiny_study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    press_ctrl_c(monkeypatch, seed=0, epoch=2)
    told: list[str] = []
    result = run_study(
        tiny_study, (0, 1), tmp_path, runtime=CPU, warn=told.append, quiet=True
    )
    assert told == ["tiny_tokens: arm t2t, seed 0 (run 1 of 4)"]
    assert [*result.arms["t2t"].results] == [0]


def test_ctrl_c_leaves_the_table_of_what_is_done(
    tiny_study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    press_ctrl_c(monkeypatch, seed=1, epoch=1)
    study = replace(tiny_study, against_cost=True)
    result = run_study(
        study, (0, 1), tmp_path, only=("patches",), runtime=CPU, quiet=True
    )
    assert [*result.arms] == ["patches"]
    assert [*result.arms["patches"].results] == [0]
    page = (tmp_path / "tiny_tokens/table.md").read_text()
    assert "Not complete: 3 of 4 runs are left" in page
    assert "Nothing to compare yet." in page
    assert (tmp_path / "tiny_tokens/picture.png").exists()
    assert (tmp_path / "runs/tiny.patches-seed1/last").is_dir()


def test_every_seed_is_evaluated_on_its_own_images(
    tiny_study: Study, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: dict[tuple[str, int], Splits] = {}
    programs: list[int] = []

    def train(recipe: Recipe, *, splits: Splits, **_: object) -> Result:
        trained[recipe.name, recipe.seed] = splits
        return Result(tmp_path, True, {})

    monkeypatch.setattr("t2t.lab.studies.run.train", train)
    monkeypatch.setattr("t2t.lab.studies.run.write", lambda *_: None)
    monkeypatch.setattr(
        "t2t.lab.studies.run.reset_compiler", lambda: programs.append(len(trained))
    )
    for data, holdout in ((images / "train", 0), (images, 6), (images, 0)):
        trained.clear()
        one = tiny_study.changed(
            lambda each, data=data, held=holdout: replace(
                each, data=str(data), holdout=held
            )
        )
        run_study(one, (0, 1), tmp_path)
        for (name, seed), splits in trained.items():
            own = open_data(replace(one.arms["t2t"], seed=seed))
            judges = [splits.val.name(number) for number in range(len(splits.val))]
            assert judges == [own.val.name(number) for number in range(len(own.val))]
            # Arms share what is decoded; so may seeds that split nothing.
            assert splits is trained["tiny", seed]
            shared = splits is trained[name, 0]
            assert shared == (seed == 0 or (data, holdout) == (images, 0))
    # What is compiled for an arm serves all its seeds, and no other arm.
    assert programs == [0, 2] * 3


def test_a_run_that_fails_keeps_no_other_from_being_trained(
    tiny_study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = RunLogger.start

    def fail(self: RunLogger, *given: Any) -> None:
        if (self.recipe.name, self.recipe.seed) == ("tiny", 0):
            raise torch.OutOfMemoryError
        plain(self, *given)

    monkeypatch.setattr(RunLogger, "start", fail)
    told: list[str] = []
    given = (tiny_study, (0, 1), tmp_path)
    result = run_study(*given, runtime=CPU, warn=told.append, quiet=True)
    assert {name: [*arm.results] for name, arm in result.arms.items()} == {
        "t2t": [1],
        "patches": [0, 1],
    }
    reason = "cpu ran out of memory with 16 images at once"
    assert told[1].startswith(f"tiny_tokens: arm t2t, seed 0 failed. {reason}")
    page = (tmp_path / "tiny_tokens/table.md").read_text()
    assert "Not complete: 1 of 4 runs are left, of `t2t`" in page
    assert f"- `t2t`, seed 0: {reason}" in page
    monkeypatch.undo()
    assert run_study(*given, runtime=CPU, quiet=True).failed == ()
    assert reason not in (tmp_path / "tiny_tokens/table.md").read_text()


def test_a_run_that_another_process_trains_is_left_to_it(
    tiny_study: Study, tmp_path: Path
) -> None:
    with RunFolder(tmp_path / "runs/tiny-seed0").hold():
        result = run_study(tiny_study, (0,), tmp_path, runtime=CPU, quiet=True)
    assert [*result.arms] == ["patches"]
    assert "Another process is training in" in result.failed[0]
    run_study(tiny_study, (0,), tmp_path, runtime=CPU, quiet=True)  # as that one does
    costs = costs_of(tiny_study, 3)
    failed = {("t2t", 0): "Another process is training in it."}
    assert gather(tiny_study, (0,), tmp_path, costs, 3, failed).failed == ()


def test_a_table_that_cannot_be_written_is_reported_and_stops_no_run(
    tiny_study: Study, tmp_path: Path
) -> None:
    (tmp_path / "tiny_tokens").touch()
    told: list[str] = []
    given = (tiny_study, (0,), tmp_path)
    with pytest.raises(UserError, match=r"tiny_tokens \(File exists\); fix that"):
        run_study(*given, runtime=CPU, warn=told.append, quiet=True)
    assert told[2] == "tiny_tokens: arm patches, seed 0 (run 2 of 2)"
    assert told[1] == told[3]
    assert "tiny_tokens (File exists); fix that" in told[1]
    (tmp_path / "tiny_tokens").unlink()
    assert run_study(*given, runtime=CPU, warn=pytest.fail).num_missing == 0
    assert (tmp_path / "tiny_tokens/table.md").exists()


def test_a_run_of_another_recipe_is_refused(tiny_study: Study, tmp_path: Path) -> None:
    one = replace(tiny_study, arms={"t2t": tiny_study.arms["t2t"]}, claims=())
    run_study(one, (0,), tmp_path, runtime=CPU, quiet=True)
    longer = tiny_study.changed(lambda recipe: replace(recipe, epochs=3))
    told: list[str] = []
    # Before the seed that is new, and without an option that only t2t train has.
    with pytest.raises(UserError, match=r"\(epochs: 2 → 3\); name another --folder\.$"):
        run_study(longer, (1, 0), tmp_path, runtime=CPU, warn=told.append, quiet=True)
    assert told == []


def test_a_folder_that_cannot_be_written_is_reported_once(
    tiny_study: Study, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    told: list[str] = []
    for place in (tmp_path / "file", tmp_path / "file/studies"):
        with pytest.raises(UserError, match=r"cannot be written .*another --folder\.$"):
            run_study(tiny_study, (0, 1), place, runtime=CPU, warn=told.append)
    assert told == []


def test_a_run_counts_whichever_way_its_data_is_named(
    tiny_study: Study, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(images.parent)
    one = replace(tiny_study, arms={"t2t": tiny_study.arms["t2t"]}, claims=())
    run_study(one, (0,), tmp_path, runtime=CPU, quiet=True)
    alike = one.changed(lambda recipe: replace(recipe, data=images.name))
    told: list[str] = []
    result = run_study(alike, (0,), tmp_path, runtime=CPU, warn=told.append)
    assert (told, result.num_missing) == ([], 0)


def test_the_spread_is_the_sample_deviation() -> None:
    from t2t.lab.studies.results import Values

    values = Values({0: 94.0, 1: 95.0, 2: 96.5})
    assert values.mean == pytest.approx(95.1667, abs=1e-4)
    assert values.std == pytest.approx(statistics.stdev([94.0, 95.0, 96.5]))
    assert values.show() == "95.17 ± 1.26"
    assert values.show(digits=3) == "95.167 ± 1.258"
    assert Values({0: 94.0}).show() == "94.00"
