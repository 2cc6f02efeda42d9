"""Pictures of a task in the run folder, and the encoder that it leaves."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from t2t.analysis import picture_figure
from t2t.commands.train_summary import files_and_commands
from t2t.models.weights import load
from t2t.tasks import registry
from t2t.tasks.classify import Classify
from t2t.training.distributed import World
from t2t.training.initial_state import new_state
from t2t.training.recipe import Recipe
from t2t.training.runtime import Runtime, resolve_runtime
from t2t.training.train import train

Tiny = Callable[..., Recipe]
TASKS = ["masked_patches", "masked_autoencoder"]


@pytest.mark.parametrize("name", TASKS)
def test_a_masked_run_leaves_pictures_and_an_encoder(
    name: str, tiny: Tiny, cpu: Runtime, images: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    recipe = tiny(task=name, task_args={"patch_size": 2}, epochs=2)
    result = train(recipe, folder=folder, runtime=cpu, quiet=True)
    metric = {"masked_patches": "masked_accuracy"}.get(name, "val_loss")
    assert result.summary["metric"] == metric
    drawn = np.asarray(Image.open(folder / "pictures.png"))
    assert len(np.unique(drawn.reshape(-1, 3), axis=0)) > 8 * 16
    assert "what the task saw and predicted" in files_and_commands(folder)
    # The encoder starts another run; only the head is new.
    state = new_state(
        tiny(weights=str(folder)),
        resolve_runtime(cpu, World(0, 1, torch.device("cpu"))),
        World(0, 1, torch.device("cpu")),
        3,
        ("a", "b", "c"),
    )
    saved = load(folder).state_dict()
    fresh = state.model.state_dict()
    assert {*fresh} - {*saved} == {"head.weight", "head.bias"}
    for key, value in saved.items():
        assert torch.equal(fresh[key], value)
    assert state.loaded is not None
    assert "It has no head: the model's is new." in state.loaded.notes
    # Starting over removes what the run drew.
    fewer = replace(recipe, epochs=1, task="classify", task_args={})
    train(fewer, folder=folder, runtime=cpu, quiet=True, fresh=True)
    assert not (folder / "pictures.png").exists()


def test_a_picture_that_fails_costs_no_run(
    tiny: Tiny,
    cpu: Runtime,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*given: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(picture_figure, "draw_table", full)
    folder = tmp_path / "run"
    recipe = tiny(task="masked_patches", epochs=1)
    assert train(recipe, folder=folder, runtime=cpu, quiet=True).finished
    assert (folder / "result.json").exists()
    assert (
        "pictures.png could not be drawn: [Errno 28]"
        in (folder / "log.txt").read_text()
    )


@pytest.mark.parametrize(
    ("pictures", "why"),
    [
        (lambda *_: 1 / 0, "division by zero"),
        (lambda *_: [], "pictures returns a list; it must return a dict"),
        (
            lambda self, model, images: {"x": images},
            "pictures returns torch.float32 of shape .* as 'x'; it must return torch.u",
        ),
    ],
)
def test_pictures_that_are_wrong_cost_no_run(
    pictures: Callable[..., Any],
    why: str,
    tiny: Tiny,
    cpu: Runtime,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = type("Own", (Classify,), {"pictures": pictures})
    monkeypatch.setitem(registry.TASKS, "own", own)
    folder = tmp_path / "run"
    recipe = tiny(task="own", epochs=1)
    assert train(recipe, folder=folder, runtime=cpu, quiet=True).finished
    log = (folder / "log.txt").read_text()
    assert re.search(f"pictures.png could not be drawn: .*{why}", log)
    assert not (folder / "pictures.png").exists()


def test_damaged_images_are_not_drawn(
    tiny: Tiny, cpu: Runtime, images: Path, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    for path in images.rglob("*.png"):
        copy = data / path.relative_to(images)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    (data / "val" / "a" / "0.png").write_bytes(b"no image")  # the first of the eight
    sizes = []
    for number, source in enumerate((images, data)):
        recipe = tiny(task="masked_autoencoder", epochs=1, data=str(source))
        train(recipe, folder=tmp_path / str(number), runtime=cpu, quiet=True)
        with Image.open(tmp_path / str(number) / "pictures.png") as drawn:
            sizes.append(drawn.size)
    assert sizes[0][0] == sizes[1][0]
    assert sizes[0][1] - sizes[1][1] == 128 + picture_figure.GAP
