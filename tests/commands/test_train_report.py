"""The page of mistakes, written after a training."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "training"))

from tiny_runs import images, no_pictures, one_thread, tiny

import t2t
from t2t.commands.train_report import is_quick, write_report
from t2t.commands.train_summary import files_and_commands
from t2t.training.recipe import Recipe

__all__ = ["images", "no_pictures", "one_thread", "tiny"]

Tiny = Callable[..., Recipe]


def test_a_quick_page_is_written_into_the_run_folder(
    tiny: Tiny, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    result = t2t.train(tiny(), folder=folder, device="cpu", quiet=True)
    page = "t2t eval" + f" {folder} --report mistakes.html"
    assert page in files_and_commands(folder)
    assert write_report(folder, result.summary, "cpu") == ""
    assert "Most confident mistakes" in (folder / "mistakes.html").read_text()
    table = (folder / "mistakes.csv").read_text().splitlines()
    num_wrong = round(13 * (1 - result.summary["top1"] / 100))
    assert sum(line.startswith("mistake,val") for line in table) == num_wrong
    assert page not in files_and_commands(folder)
    assert str(folder / "mistakes.html") in files_and_commands(folder)
    # A new start removes the page of the run before.
    t2t.train(tiny(), folder=folder, device="cpu", quiet=True, fresh=True)
    assert not (folder / "mistakes.html").exists()
    assert not (folder / "mistakes.csv").exists()


def test_a_page_that_takes_long_or_fails_is_not_written(
    tiny: Tiny, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    result = t2t.train(tiny(), folder=folder, device="cpu", quiet=True)
    summary = {**result.summary, "images_per_second": 10.0, "train_minutes": 1.0}
    assert is_quick(folder, summary)
    assert not is_quick(folder, {**summary, "images_per_second": 0.1})
    assert is_quick(
        folder, {**summary, "images_per_second": 0.1, "train_minutes": 100.0}
    )
    assert not is_quick(folder, {**summary, "steps": 10**6})
    without = {key: value for key, value in summary.items() if key != "top1"}
    assert not is_quick(folder, without)
    lost = tmp_path / "lost"
    shutil.copytree(folder, lost)
    recipe = json.loads((lost / "recipe.json").read_text())
    recipe["data"] = str(tmp_path / "nowhere")
    (lost / "recipe.json").write_text(json.dumps(recipe))
    told = write_report(lost, summary, "cpu")
    assert told.startswith(
        "The page of mistakes was not written: There is no file or folder"
    )
    assert not (lost / "mistakes.html").exists()
