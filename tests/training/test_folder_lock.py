"""One process at a time trains in a folder."""

from pathlib import Path

import pytest

from t2t.errors import UserError
from t2t.training.recipe import Recipe
from t2t.training.run_folder import RunFolder
from t2t.training.runtime import Runtime
from t2t.training.train import train


def test_two_cannot_train_in_one_folder(
    recipe: Recipe, cpu: Runtime, tmp_path: Path
) -> None:
    with (
        RunFolder(tmp_path / "run").hold(),
        pytest.raises(UserError, match="Another process is training"),
    ):
        train(recipe, folder=tmp_path / "run", runtime=cpu, quiet=True)


def test_a_folder_is_held_until_it_is_left_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = RunFolder(tmp_path / "run"), RunFolder(tmp_path / "run")
    refused = []
    unlink = Path.unlink

    def look(path: Path) -> None:
        with pytest.raises(UserError, match="Another process"), second.hold():
            pass
        refused.append(path.name)
        unlink(path)

    with first.hold():
        monkeypatch.setattr(Path, "unlink", look)
    monkeypatch.undo()
    assert refused == [".lock"]
    assert not (tmp_path / "run").exists()
