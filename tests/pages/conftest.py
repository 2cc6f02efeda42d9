"""The folder in which pages are run."""

import importlib
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

# Tests import modules beside this file.
sys.path.insert(0, str(Path(__file__).parent))

from drawings import draw_cat, draw_dog, write_photos
from PIL import Image

import t2t.lab.studies.run
import t2t.probing.finetune
import t2t.training.train
from t2t.analysis import occlusion
from t2t.cli import main
from t2t.data.sources import Splits, Subset
from t2t.models.zoo import CONFIGS
from t2t.recipes.settings import with_settings
from t2t.training.forecast import advice
from t2t.training.loaders import open_data
from t2t.training.logging import metrics_log
from t2t.training.recipe import Recipe
from t2t.training.result import Result

PHOTOS = 6
"""Images of each class: enough to hold some out."""

MOST = 200
"""Images that a run trains on."""

train_whole = t2t.training.train.train


def train_one_epoch(recipe: Recipe, **options: Any) -> Result:
    """Trains as `train` does, but for one epoch, and from scratch only one block."""
    is_ours = recipe.model in CONFIGS
    one_block = ("model_args.depth=1",) if is_ours and not recipe.weights else ()
    return train_whole(with_settings(recipe, 1, one_block), **options)


def open_few(recipe: Recipe) -> Splits:
    """Opens a recipe's images, but trains on few of them."""
    splits = open_data(recipe)
    step = -(-len(splits.train) // MOST)
    kept = range(0, len(splits.train), step)
    return replace(splits, train=Subset(splits.train, kept))


def draw_nothing(rows: object, title: str, path: Path, metric: object) -> None:
    """Writes a picture without curves, which take as long as these runs."""
    Image.new("L", (1, 1)).save(path)


@contextmanager
def shortened() -> Iterator[None]:
    """Runs last one epoch of few images and draw no curves; maps have few cells."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metrics_log, "draw_curves", draw_nothing)
        patch.setattr(occlusion, "NUM_CELLS", 2)
        patch.setattr(t2t.training.train, "open_data", open_few)
        # The machine's speed is not measured, for epochs or an estimate.
        module = importlib.import_module("t2t.recipes.train")
        patch.setattr(module, "needs_budget", lambda *_: False)
        patch.setattr(advice, "step_seconds", lambda *_: 0.1)
        for module in (t2t.training.train, t2t.probing.finetune, t2t.lab.studies.run):
            patch.setattr(module, "train", train_one_epoch)
        yield


@pytest.fixture
def short_runs() -> Iterator[None]:
    """The runs and maps of a test are small."""
    with shortened():
        yield


@pytest.fixture(scope="session")
def example_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What pages find: photos/, cat.jpg, dog.jpg, labels.csv and runs/own."""
    folder = tmp_path_factory.mktemp("example")
    write_photos(folder / "photos", PHOTOS)
    draw_cat(100, size=160).save(folder / "cat.jpg")
    draw_dog(100, size=160).save(folder / "dog.jpg")
    names = sorted(folder.glob("photos/*/*.jpg"))
    rows = [f"{path.relative_to(folder)},{path.parent.name}" for path in names]
    (folder / "labels.csv").write_text("\n".join(["file,label", *rows, ""]))
    with shortened(), pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["train", "--data", "photos/"]) == 0
    assert (folder / "runs/own/model.safetensors").is_file()
    return folder


@pytest.fixture
def page_folder(
    example_folder: Path,
    short_runs: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    """A copy of the example folder, which is the working and home folder."""
    folder = tmp_path / "page"
    shutil.copytree(example_folder, folder)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("T2T_CACHE", str(folder / ".cache"))
    return folder
