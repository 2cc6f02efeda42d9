"""The notebooks run, and print what they show."""

import base64
import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest
from blocks import first_missing

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted(ROOT.glob("docs/notebooks/*.ipynb"))
PNG = b"\x89PNG"


@pytest.fixture(scope="module")
def runner() -> ModuleType:
    """The script that runs notebooks."""
    path = ROOT / "website/notebook.py"
    spec = importlib.util.spec_from_file_location("site_notebook", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_there_is_a_notebook() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["from_folder_to_report"]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_prints_what_it_shows(
    path: Path,
    runner: ModuleType,
    short_runs: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    shown = json.loads(path.read_text())
    done = runner.run(shown)
    assert len(done["cells"]) == len(shown["cells"])
    for before, after in zip(shown["cells"], done["cells"], strict=True):
        if before["cell_type"] == "code":
            # Which classes are hardest may differ between machines.
            lines = runner.printed(before).splitlines()[:1]
            assert first_missing(lines, runner.printed(after)) is None
            assert len(after["outputs"]) == len(before["outputs"])


def test_a_failing_cell_fails_the_notebook(runner: ModuleType) -> None:
    cell = {"cell_type": "code", "source": ["1 / 0\n"], "outputs": []}
    with pytest.raises(ZeroDivisionError):
        runner.run({"cells": [cell]})


def test_a_notebook_becomes_a_page(runner: ModuleType) -> None:
    data = {"image/png": base64.b64encode(PNG).decode()}
    stream = {"output_type": "stream", "name": "stdout", "text": ["3\n"]}
    cells = [
        {"cell_type": "markdown", "source": ["# Title\n", "text"]},
        {
            "cell_type": "code",
            "source": ["print(3)"],
            "outputs": [stream, {"output_type": "display_data", "data": data}],
        },
    ]
    text, pictures = runner.as_page({"cells": cells}, "n")
    assert text == (
        "# Title\ntext\n\n```python\nprint(3)\n```\n\n```text\n3\n```\n\n"
        "![figure](n_0.png)\n"
    )
    assert pictures == {"n_0.png": PNG}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_small(path: Path) -> None:
    assert path.stat().st_size < 300_000
