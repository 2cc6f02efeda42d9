"""`t2t study` as users meet it."""

import json
from pathlib import Path

import pytest

from t2t.cli import main
from t2t.errors import UserError
from t2t.lab.studies import STUDIES
from t2t.training.result import Result

Output = pytest.CaptureFixture[str]


def test_it_lists_the_studies(capsys: Output) -> None:
    assert main(["study"]) == 0
    told = capsys.readouterr().out
    assert all(name in told for name in STUDIES)
    assert main(["study", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["study"] for row in rows] == [*STUDIES]


def test_a_dry_run_prints_runs_and_time(tmp_path: Path, capsys: Output) -> None:
    words = ["study", "depth", "--dry-run", "--folder", str(tmp_path), "--epochs", "30"]
    assert main(words) == 0
    told = capsys.readouterr().out
    assert "deep_narrow    t2t_vit_7_32       3.98    1.278       30   0 of 3" in told
    assert "6 runs to do" in told
    assert "time per run on one H200" in told
    assert main([*words, "--only", "shallow_wide", "--seeds", "4", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["arm"], row["epochs"], row["runs"]) == ("shallow_wide", 30, 1)
    assert not list(tmp_path.iterdir())


def test_a_dry_run_counts_the_images_that_are_named(
    tmp_path: Path, capsys: Output
) -> None:
    words = ["study", "depth", "--dry-run", "--json", "--folder", str(tmp_path)]
    told = set()
    # 937 images in batches of 64, whichever way they are named.
    words += ["--set", "holdout=500", "--set", "batch_size=64", "--seeds", "0"]
    for more in (["--data", "digits"], ["--set", "data=digits"]):
        assert main([*words, *more]) == 0
        told.add(capsys.readouterr().out)
    (only,) = told
    row = json.loads(only)[0]
    steps = 937 // 64 * row["epochs"]
    petamacs = 3 * row["macs"] * steps * 64 / 1e15
    assert row["petamacs"] == pytest.approx(petamacs, abs=1e-3)


def small_study(folder: Path) -> list[str]:
    return [
        *["study", "head", "--data", "digits", "--folder", str(folder)],
        *["--seeds", "0", "--epochs", "1", "--device", "cpu", "--only", "class_token"],
        *["--set", "image_size=8,8", "--set", "batch_size=360", "--set", "channels=1"],
        *["--set", "model_args.dim=16", "--set", "model_args.depth=1"],
        *["--set", "model_args.num_heads=1", "--set", "model_args.token_dim=8"],
        *["--set", "augmentation.mean=0.3,", "--set", "augmentation.std=0.4,"],
    ]


def test_a_study_that_is_stopped_ends_as_a_run_does(
    tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: object, **options: object) -> Result:
        return Result(tmp_path, False, {})

    monkeypatch.setattr("t2t.lab.studies.run.train", stopped)
    assert main(small_study(tmp_path / "here")) == 130
    assert "No run finished; run the same command to resume." in capsys.readouterr().out


def test_a_study_whose_runs_fail_is_no_success(
    tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **options: object) -> Result:
        raise UserError("There is no room.")

    monkeypatch.setattr("t2t.lab.studies.run.train", fail)
    assert main(small_study(tmp_path / "here")) == 2
    told = capsys.readouterr().err
    assert "head: arm class_token, seed 0 failed. There is no room." in told
    assert "1 run of head failed, for the reasons printed above" in told


def test_it_trains_on_any_data(tmp_path: Path, capsys: Output) -> None:
    assert main(small_study(tmp_path / "here")) == 0
    told = capsys.readouterr()
    assert "head: arm class_token, seed 0 (run 1 of 1)" in told.err
    assert "Not complete: 1 of 2 runs are left, of `mean`;" in told.out
    assert "run the same command without --only to resume." in told.out
    page = (tmp_path / "here/head/table.md").read_text()
    assert "1 epoch of digits" in page
    assert page in told.out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["study", "heads"], "Did you mean head"),
        (["study", "head", "--set", "seed=1"], "give --seeds"),
        (["study", "head", "--seeds", "1", "1"], "each once"),
        (["study", "head", "--seeds", "-1"], "--seeds -1 is too small"),
        (["study", "head", "--seeds", "0", str(2**32)], "4294967296 is too large"),
        (["study", "head", "--data", "a", "--set", "data=b"], "contradict each other"),
        (
            [
                "study",
                "head",
                "--dry-run",
                "--data",
                "digits",
                "--set",
                "batch_size=9000",
            ],
            "A batch of 9000 is more than the 1437 images",
        ),
        (["study", "head", "--dry-run", "--only", "means"], "no arm 'means'"),
        (
            ["study", "head", "--set", "model_args.pool=mean"],
            "--set model_args.pool is not allowed: the arms of head differ in it",
        ),
        (["study", "networks", "--set", "model=resnet50"], "of networks differ in it"),
        (["study", "head", "--set", "epoch=1"], "no setting 'epoch'"),
    ],
)
def test_mistakes_are_reported(words: list[str], sentence: str, capsys: Output) -> None:
    assert main(words) == 2
    assert sentence in capsys.readouterr().err
