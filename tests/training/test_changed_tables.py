"""A finished run says that its table of labels has changed."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from t2t.commands.train import report_result
from t2t.data.label_config import LabelConfig
from t2t.training.recipe import Recipe
from t2t.training.runtime import Runtime
from t2t.training.train import train

Tiny = Callable[..., Recipe]


def test_a_changed_table_is_noted(
    tiny: Tiny, cpu: Runtime, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tiny(epochs=1)
    paths = sorted(Path(recipe.data).glob("train/*/*"))
    rows = [f"{path.relative_to(recipe.data)},{path.parent.name}" for path in paths]
    table = tmp_path / "labels.csv"
    table.write_text("\n".join(["path,label", *rows, ""]))
    recipe = replace(recipe, labels=LabelConfig(files=(str(table),)))

    def run(folder: str = "run") -> tuple[str, ...]:
        return train(recipe, folder=tmp_path / folder, runtime=cpu, quiet=True).notes

    assert run() == run() == ()
    table.write_text(table.read_text().replace(rows[0], rows[0] + "x"))
    (note,) = run()
    assert note.startswith(f"{table} has changed since this run was trained: ")
    report_result(
        train(recipe, folder=tmp_path / "run", runtime=cpu, quiet=True), "cpu"
    )
    assert "has changed since" in " ".join(capsys.readouterr().err.split())
    table.unlink()  # the data of a finished run may be gone
    assert run() == ()
    (tmp_path / "run" / "environment.json").unlink()
    assert run() == ()
