"""Finished runs become a record; others do not."""

import json
import os
import shlex
from dataclasses import replace
from errno import ENOSPC
from pathlib import Path
from shutil import copytree

import pytest

from t2t.cli import main
from t2t.errors import UserError
from t2t.lab.output_dir import renamed
from t2t.lab.records.record import SUMMARY_KEYS, record
from t2t.lab.studies.study import Study
from t2t.training.runtime import Runtime
from t2t.training.train import train

CPU = Runtime(device="cpu", compile="off", workers=1)


@pytest.fixture(scope="module")
def runs(tiny_study: Study, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two finished runs that differ in their seed."""
    folder = tmp_path_factory.mktemp("runs")
    recipe = replace(tiny_study.arms["patches"], epochs=1)
    for seed in (0, 1):
        train(
            replace(recipe, seed=seed),
            folder=folder / f"seed{seed}",
            runtime=CPU,
            quiet=True,
        )
    return [folder / "seed0", folder / "seed1"]


def changed(run: Path, place: Path, file: str, **values: object) -> Path:
    """A copy of a run that says other things of itself."""
    copytree(run, place)
    path = place / file
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
    return place


def test_a_record_holds_what_its_runs_say(
    runs: list[Path], images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log.txt"
    log.write_text(f"what was told of {images}\n")
    words = ["record", str(runs[1]), str(runs[0]), "--out", str(tmp_path / "here")]
    words += ["--data-name", "path/to/images", "--log", str(log), "--log", str(log)]
    assert main(words) == 0
    assert "tiny.patches, top-1" in capsys.readouterr().out
    here = tmp_path / "here"
    results = [json.loads((run / "result.json").read_text()) for run in runs]
    summary = json.loads((here / "summary.json").read_text())
    assert [*summary] == [*SUMMARY_KEYS]
    assert summary["recipe"] == "tiny.patches"
    assert summary["data"] == "path/to/images"
    assert summary["model"] == "t2t_vit_7_32"
    assert summary["parameters"] == results[0]["parameters"]
    assert summary["epochs"] == 1
    assert summary["seeds"] == [0, 1]
    assert summary["top1"] == [results[0]["top1"], results[1]["top1"]]
    assert summary["top1_raw"] == [results[0]["top1_raw"], results[1]["top1_raw"]]
    assert summary["gpu"].startswith("none (cpu")
    names = {path.name for path in here.iterdir()}
    assert names == {
        *("summary.json", "recipe.json", "environment.json", "curves.png"),
        *("README.md", "seed0.json", "seed0.jsonl", "seed0.log"),
        *("seed1.json", "seed1.jsonl", "seed1.log"),
    }
    assert (here / "seed1.jsonl").read_text() == (runs[1] / "metrics.jsonl").read_text()
    told = [path for path in here.iterdir() if path.suffix != ".png"]
    assert not [path for path in told if str(images) in path.read_text()]


def test_times_are_the_mean_of_the_seeds(runs: list[Path], tmp_path: Path) -> None:
    timed = [
        changed(
            run,
            tmp_path / str(number),
            "result.json",
            train_minutes=1.5 * number,
            compile_minutes=0.2 * number,
        )
        for number, run in enumerate(runs, start=1)
    ]
    summary = record(timed, tmp_path / "record")
    assert (summary["train_minutes"], summary["compile_minutes"]) == (2.25, 0.3)


def test_a_page_that_was_written_stays(
    runs: list[Path], images: Path, tmp_path: Path
) -> None:
    record(runs, tmp_path)
    first = (tmp_path / "README.md").read_text()
    assert first.startswith("# tiny.patches\n")
    assert f"M parameters, 1 epoch of {images}. GPU" in first
    page = f"What helped with {images}.\n"
    (tmp_path / "README.md").write_text(page)
    record(runs, tmp_path, data_name="images")
    assert (tmp_path / "README.md").read_text() == page


def test_a_name_replaces_the_whole_path_alone() -> None:
    told = '--data ./c "./c" ./c/a.png ../c ./c-old ./cat ./c.tar'
    assert renamed(told, "./c", "path/to/c") == (
        '--data path/to/c "path/to/c" path/to/c/a.png ../c ./c-old ./cat ./c.tar'
    )
    command = shlex.join(["t2t", "train", "--data", "/it's é", "--seed", "1"])
    assert shlex.split(renamed(command, "/it's é", "my own"))[3] == "my own"


def test_a_name_that_recipes_have_too_stays_theirs() -> None:
    run = {
        "name": "digits.t2t_vit",
        "data": "digits",
        "command": "t2t train digits --folder runs/digits --data digits",
    }
    assert renamed([run], "digits", "scans") == [
        {
            "name": "digits.t2t_vit",
            "data": "scans",
            "command": "t2t train digits --folder runs/digits --data scans",
        }
    ]
    assert renamed("3 epochs of digits, judged", "digits", "x").endswith(" x, judged")


def test_any_path_is_renamed_to_any_name(runs: list[Path], tmp_path: Path) -> None:
    path, name = "/données/it's", 'the "own" \\ set'
    run = changed(runs[0], tmp_path / "run", "recipe.json", data=path)
    command = shlex.join(["t2t", "train", "--data", path])
    for file in ("result.json", "environment.json"):
        told = json.loads((run / file).read_text()) | {"command": command}
        (run / file).write_text(json.dumps(told))
    (run / "log.txt").write_bytes(f"{path}/1.png: ".encode() + b"\xff\n")
    changed(run, tmp_path / "odd", "result.json", command="--folder \udcff")
    record([tmp_path / "odd"], tmp_path / "odder")
    assert "--folder \\udcff" in (tmp_path / "odder/README.md").read_text()
    summary = record([run], tmp_path / "record", data_name=name)
    assert summary["data"] == name
    assert shlex.split(summary["command"])[-1] == name
    for file in (tmp_path / "record").iterdir():
        assert b"donn" not in file.read_bytes()


def test_what_is_no_record_is_refused(runs: list[Path], tmp_path: Path) -> None:
    first, second = runs
    unfinished = changed(second, tmp_path / "unfinished", "recipe.json")
    (unfinished / "result.json").unlink()
    other = changed(second, tmp_path / "other", "recipe.json", drop_path=0.1)
    alike = changed(first, tmp_path / "alike", "recipe.json", drop_path=0.2)
    elsewhere = changed(
        second, tmp_path / "elsewhere", "environment.json", device="cuda NVIDIA H200"
    )
    many = changed(second, tmp_path / "many", "environment.json", num_processes=8)
    held = changed(second, tmp_path / "held", "recipe.json", holdout=5000)
    cut = changed(second, tmp_path / "cut", "result.json", top1=99.0)
    nowhere = changed(second, tmp_path / "nowhere", "environment.json", device=None)
    unseeded = changed(second, tmp_path / "unseeded", "recipe.json", seed="one")
    untimed = changed(second, tmp_path / "untimed", "result.json", train_minutes="")
    into = tmp_path / "record"
    cases = {
        "has not finished training": [first, unfinished],
        r"different recipes \(drop_path: 0.0 → 0.1\)": [first, other],
        r"different recipes \(drop_path: 0.0 → 0.2\)": [first, alike],
        "have the same seed 0": [first, first],
        r"ways \(device: .*; a record holds one machine's": [first, elsewhere],
        r"in different ways \(num_processes: 1 → 8\)": [first, many],
        "cut/metrics.jsonl does not end in the run's result": [first, cut],
        "nowhere/environment.json was changed or damaged: its 'device'": [nowhere],
        "unseeded/recipe.json is not a recipe. ": [unseeded],
        "untimed/result.json was .* its 'train_minutes' should be": [untimed],
        "evaluated on 5,000 held-out training images, not on the test": [held],
        "is not a run folder": [tmp_path],
    }
    for sentence, some in cases.items():
        with pytest.raises(UserError, match=sentence):
            record(some, into)
    with pytest.raises(UserError, match="2 runs and 1 logs"):
        record(runs, into, logs=[first / "recipe.json"])
    with pytest.raises(UserError, match="There is no log"):
        record([first], into, logs=[tmp_path / "none"])
    with pytest.raises(UserError, match="leave out --held-out"):
        record(runs, into, held_out=True)
    assert not into.exists()


def test_a_record_overwrites_nothing_else(runs: list[Path], tmp_path: Path) -> None:
    photos, file = tmp_path / "photos", tmp_path / "cat.jpg"
    photos.mkdir()
    file.touch()
    (photos / "1.jpg").touch()
    with pytest.raises(UserError, match=r"photos holds something other than a record"):
        record(runs, photos)
    with pytest.raises(UserError, match=r"cat\.jpg cannot be written"):
        record(runs, file)
    assert [path.name for path in photos.iterdir()] == ["1.jpg"]


def test_recording_again_leaves_nothing_of_other_seeds(
    runs: list[Path], tmp_path: Path
) -> None:
    record(runs, tmp_path)
    (tmp_path / "seed-search.json").write_text("mine")
    record(runs[:1], tmp_path)
    assert not [*tmp_path.glob("seed1*")]
    assert len([*tmp_path.glob("seed0.*")]) == 3
    assert (tmp_path / "seed-search.json").read_text() == "mine"
    other = changed(runs[0], tmp_path / "other", "recipe.json", name="other")
    with pytest.raises(UserError, match=r"a record of tiny\.patches, not of other"):
        record([other], tmp_path)
    (tmp_path / "recipe.json").write_text("{}")
    with pytest.raises(UserError, match=r"recipe\.json was .* 'name' should be"):
        record(runs, tmp_path)


def test_a_page_is_written_whole_or_not_at_all(
    runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_file = os.replace

    def full(source: Path, target: Path) -> None:
        if target.name == "README.md":
            raise OSError(ENOSPC, "No space left on device")
        replace_file(source, target)

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(UserError, match="No space left"):
        record(runs, tmp_path)
    assert not [*tmp_path.glob("README.md*")]


def test_a_full_disk_is_one_sentence_and_the_same_call_goes_on(
    runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*paths: Path) -> None:
        raise OSError(ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("t2t.lab.records.record.shutil.copyfile", full)
        with pytest.raises(UserError, match=r"\(No space left on device\); free"):
            record(runs, tmp_path / "one")
    (tmp_path / "one" / "summary.json").unlink()
    assert record(runs, tmp_path / "one")["seeds"] == [0, 1]


def test_held_out_numbers_and_gpus_are_labelled(
    runs: list[Path], images: Path, tmp_path: Path
) -> None:
    held = changed(runs[0], tmp_path / "held", "recipe.json", holdout=5000)
    held = changed(
        held, tmp_path / "there", "environment.json", device="cuda NVIDIA H200"
    )
    summary = record([held], tmp_path / "record", held_out=True)
    assert summary["data"] == f"{images}, evaluated on 5,000 held-out training images"
    assert summary["gpu"] == "NVIDIA H200"
