"""`t2t.train` in Python: the same as the command."""

import inspect
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import t2t
from t2t.commands.train import train as command
from t2t.data.sources import in_memory
from t2t.errors import UserError
from t2t.recipes import digits
from t2t.recipes.train import as_words
from t2t.recipes.train import train as in_python
from t2t.training import train as train_module
from t2t.training.recipe import Recipe
from t2t.training.runtime import Runtime

Tiny = Callable[..., Recipe]


def test_every_option_of_the_command_is_a_keyword() -> None:
    ours = inspect.signature(in_python).parameters
    options = inspect.signature(command).parameters
    assert options.keys() <= ours.keys()
    for name, option in options.items():
        if name != "compile":  # on and off are True and False here
            assert ours[name].default == option.default, name


def test_settings_are_words() -> None:
    words = as_words({"optimizer.lr": 0.1, "model_args.splits": [[3, 1, 1]]})
    assert words == ("optimizer.lr=0.1", "model_args.splits=[[3, 1, 1]]")
    assert as_words(["epochs=3"]) == ("epochs=3",)
    with pytest.raises(UserError, match="is one string; give a dict"):
        as_words("epochs=3")


def test_keywords_reach_the_recipe(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[Recipe, dict[str, Any]]] = []
    monkeypatch.setattr(
        train_module, "train", lambda recipe, **named: calls.append((recipe, named))
    )
    t2t.train(
        tiny(),
        data=tmp_path,
        image_size=16,
        seed=3,
        epochs=2,
        set={"schedule.warmup_epochs": 0, "augmentation.rand_augment": None},
        folder=tmp_path / "run",
        device="cpu",
        workers=2,
        notes=["Hello."],
    )
    ((recipe, named),) = calls
    assert (recipe.data, recipe.image_size) == (str(tmp_path), (16, 16))
    assert (recipe.seed, recipe.epochs, recipe.schedule.warmup_epochs) == (3, 2, 0)
    assert named["runtime"] == Runtime(device="cpu", workers=2)
    assert named["folder"] == str(tmp_path / "run")
    assert named["notes"] == ["Hello."]


def test_a_runtime_and_its_options_exclude_each_other(tiny: Tiny) -> None:
    with pytest.raises(UserError, match="device and runtime are both given"):
        t2t.train(tiny(), device="cpu", runtime=Runtime())


def test_a_dry_run_trains_nothing(
    tiny: Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    result = t2t.train(tiny(), dry_run=True, device="cpu", folder=folder)
    assert (result.finished, result.folder) == (False, folder)
    assert not folder.exists()
    assert "4 epochs of 3 steps of 16 images" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("recipe", "data", "batch_size"),
    [("cifar10.sprint", "(arrays, arrays)", 12), ("digits", "'digits'", 700)],
)
def test_no_compiler_or_other_library_is_imported_to_train(
    recipe: str, data: str, batch_size: int, tmp_path: Path
) -> None:
    script = f"""
import sys
import numpy as np
import t2t

pixels = np.random.default_rng(0).integers(0, 256, (24, 32, 32, 3), dtype=np.uint8)
arrays = (pixels, np.arange(24) % 3)
t2t.train(
    "{recipe}",
    data={data},
    folder=sys.argv[1],
    epochs=2,
    set={{
        "batch_size": {batch_size},
        "model_args.depth": 1,
        "model_args.dim": 24,
        "model_args.num_heads": 1,
        "model_args.token_dim": 8,
    }},
    device="cpu",
)
heavy = {{"torch._dynamo", "torch._inductor", "timm", "torchvision", "sklearn"}}
heavy |= {{"scipy", "pandas", "pyarrow"}}
sys.exit(" ".join(heavy & sys.modules.keys()) or 0)
"""
    command = [sys.executable, "-c", script, str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_objects_train_and_resume_like_files(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (61, 8, 8, 3)).astype(np.uint8)
    labels = np.arange(61) % 3
    data = ((pixels[:48], labels[:48]), (pixels[48:], labels[48:]))

    def train(data: Any) -> Any:
        folder = tmp_path / "run"
        return t2t.train(tiny(), data=data, folder=folder, device="cpu", quiet=True)

    result = train(data)
    assert result.finished
    name = json.loads((tmp_path / "run" / "recipe.json").read_text())["data"]
    assert name.startswith("memory:arrays-")
    assert train(data).already_finished
    found = t2t.evaluate(result.folder, device="cpu")
    assert (found.num_images, found.report.data) == (13, name)
    assert found.top1 == pytest.approx(result.summary["top1"], abs=1e-3)
    assert f"top1={result.summary['top1']:g}" in repr(result)
    with pytest.raises(UserError, match=r'another recipe \(data: "memory:'):
        train(((pixels[:40], labels[:40]), data[1]))
    monkeypatch.setattr(in_memory, "_KEPT", {})
    with pytest.raises(UserError, match="was passed as a Python object"):
        t2t.evaluate(result.folder, device="cpu")


def test_what_is_no_recipe_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"is a function: call it, as in t2t\.train\("):
        in_python(digits.t2t_vit, dry_run=True)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="The recipe is a int: give a Recipe or a name"):
        in_python(3, dry_run=True)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="cannot be read"):
        in_python(tmp_path / "none.py", dry_run=True)
