"""Studies become a record, with the runs behind their tables."""

import json
import re
import shutil
from pathlib import Path

import pytest

from t2t.cli import main
from t2t.errors import UserError
from t2t.lab.records.study_record import is_studies, record_studies
from t2t.lab.studies.run import run_study
from t2t.lab.studies.study import Study
from t2t.training.runtime import Runtime

CPU = Runtime(device="cpu", compile="off", workers=1)


@pytest.fixture(scope="module")
def studied(tiny_study: Study, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("studies")
    run_study(tiny_study, (0, 1), folder, runtime=CPU, quiet=True)
    return folder


def test_runs_without_their_weights_are_not_trained_again(
    tiny_study: Study, studied: Path, tmp_path: Path
) -> None:
    ignored = shutil.ignore_patterns("model.safetensors", "last", "tensorboard")
    shutil.copytree(studied, tmp_path, ignore=ignored, dirs_exist_ok=True)
    told: list[str] = []
    outcome = run_study(
        tiny_study, (0, 1), tmp_path, runtime=CPU, warn=told.append, quiet=True
    )
    assert (told, outcome.num_missing) == ([], 0)


def test_a_record_of_studies_holds_tables_and_runs(
    studied: Path, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    into = tmp_path / "kept"
    words = ["record", str(studied), "--out", str(into), "--data-name", "some/images"]
    assert main(words) == 0
    assert capsys.readouterr().out == f"{into}: the study tiny_tokens\n"
    assert {path.name for path in into.iterdir()} == {
        *("README.md", "runs", "tiny_tokens")
    }
    numbers = json.loads((into / "tiny_tokens/table.json").read_text())
    arms = {"t2t": "tiny", "patches": "tiny.patches"}
    for arm in numbers["arms"]:
        summary = json.loads(
            (into / "runs" / arms[arm["arm"]] / "summary.json").read_text()
        )
        assert summary["top1"] == [*arm["top1"]["by_seed"].values()]
        assert summary["data"] == arm["data"] == "some/images"
    page = (into / "README.md").read_text()
    assert "[Which tokens?](tiny_tokens/README.md)" in page
    assert numbers["findings"][0]["sentence"] in page
    told = [path for path in into.rglob("*") if path.is_file()]
    assert len(told) > 20
    assert not [path for path in told if str(images).encode() in path.read_bytes()]
    # Again: what was written by hand stays.
    (into / "README.md").write_text("Mine.")
    record_studies(studied, into, data_name="some/images")
    assert (into / "README.md").read_text() == "Mine."


def test_a_folder_of_something_else_is_left_alone(
    studied: Path, tmp_path: Path
) -> None:
    (tmp_path / "thesis.txt").write_text("long")
    with pytest.raises(UserError, match=r"a record of these studies \(thesis.txt\)"):
        record_studies(studied, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
    assert not is_studies(tmp_path)


def test_logs_are_for_single_runs(
    studied: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    into = tmp_path / "kept"
    words = ["record", str(studied), "--out", str(into), "--log", "log.txt"]
    assert main(words) == 2
    assert "--log is for single runs" in capsys.readouterr().err
    assert not into.exists()


def test_studies_are_not_recorded_into_themselves(studied: Path) -> None:
    before = sorted(studied.rglob("*"))
    for into in (studied, studied / "kept"):
        with pytest.raises(UserError, match="is inside the folder of the studies"):
            record_studies(studied, into)
    assert sorted(studied.rglob("*")) == before


def test_nothing_is_written_of_studies_that_are_refused(
    studied: Path, tmp_path: Path
) -> None:
    broken, into = tmp_path / "broken", tmp_path / "kept"
    shutil.copytree(studied, broken)
    (broken / "tiny_tokens/picture.png").unlink()
    with pytest.raises(UserError, match=r"has no picture\.png.*write it again"):
        record_studies(broken, into)
    shutil.copy(studied / "tiny_tokens/picture.png", broken / "tiny_tokens")
    other = broken / "runs/tiny.patches-seed1/recipe.json"
    other.write_text(other.read_text().replace('"epochs": 2', '"epochs": 3'))
    with pytest.raises(UserError, match="have different recipes"):
        record_studies(broken, into)
    assert not into.exists()


def test_a_table_of_runs_that_were_trained_anew_is_refused(
    studied: Path, tmp_path: Path
) -> None:
    shutil.copytree(studied, tmp_path / "studies")
    run = tmp_path / "studies/runs/tiny-seed0"
    for name in ("result.json", "metrics.jsonl"):
        told = (run / name).read_text()
        (run / name).write_text(re.sub('"top1": [0-9.]+', '"top1": 12.5', told))
    with pytest.raises(UserError, match="differs from the runs of t2t"):
        record_studies(tmp_path / "studies", tmp_path / "kept")
    assert not (tmp_path / "kept").exists()


def test_studies_are_named_alone_and_all_at_once(
    studied: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["record", str(studied), str(tmp_path), "--out", str(tmp_path / "kept")]
    assert main(words) == 2
    assert "a record of their own; give it alone" in capsys.readouterr().err
    one = str(studied / "tiny_tokens")
    assert main(["record", one, "--out", str(tmp_path / "kept")]) == 2
    assert f"t2t record {studied} --out PATH" in capsys.readouterr().err


def table(**changes: object) -> str:
    whole = {"study": "tiny_tokens", "question": "Which?", "arms": [], "findings": []}
    return json.dumps(whole | changes)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("not json", "table.json cannot be read"),
        ("{}", "is damaged"),
        (table(arms=[{}]), "is damaged"),
        (table(arms=[{"arm": "t2t", "data": "", "recipe": "", "top1": 1}]), "damaged"),
        (table(findings=[{"sentence": None}]), "is damaged"),
    ],
)
def test_a_damaged_table_is_named_and_nothing_is_written(
    studied: Path, tmp_path: Path, text: str, sentence: str
) -> None:
    shutil.copytree(studied, tmp_path / "studies")
    (tmp_path / "studies/tiny_tokens/table.json").write_text(text)
    with pytest.raises(UserError, match=f"studies/tiny_tokens/.*{sentence}"):
        record_studies(tmp_path / "studies", tmp_path / "kept")
    assert not (tmp_path / "kept").exists()
