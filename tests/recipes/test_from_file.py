"""Recipes and parts in a user's own file, from training to evaluation."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import t2t
from t2t import user_code
from t2t.cli import main
from t2t.recipes import all_recipes
from t2t.training import train as train_module
from t2t.training.logging import metrics_log

PAGE = (Path(__file__).parents[2] / "docs" / "extending.md").read_text()
EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
SHORT = ["--device", "cpu", "--compile", "off", "--epochs", "1"]
SHORT += ["--set", "batch_size=12"]
DATA = ["--data", "images"]
SHORT += ["--set", "model_args.dim=24", "--set", "model_args.depth=1"]


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("T2T_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    for number in range(36):
        split = "train" if number < 24 else "val"
        path = Path("images", split, "ab"[number % 2], f"{number}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (8, 8), np.uint8)).save(path)
    monkeypatch.setattr(
        metrics_log, "draw_curves", lambda rows, title, path, metric: path.touch()
    )
    torch.set_num_threads(1)
    yield
    forget()


def forget() -> None:
    """As in a new process."""
    for code in [*user_code.LOADED]:
        user_code.unload(code)
    user_code.OFFERED.clear()


def recipe_name(text: str) -> str:
    return re.findall(r"^def (\w+)\(\) -> t2t.Recipe:", text, re.MULTILINE)[0]


@pytest.mark.parametrize("text", EXAMPLES, ids=recipe_name)
def test_every_example_of_the_page_trains_and_evaluates(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("my_runs.py").write_text(text)
    name = recipe_name(text)
    data = [] if "register_source" in text else DATA
    assert main(["train", f"my_runs.py:{name}", *SHORT, *data]) == 0
    run = Path("runs", name)
    assert (run / "code" / "my_runs.py").read_text() == text
    forget()
    capsys.readouterr()
    command = "probe" if "needs_labels = False" in text else "eval"
    assert main([command, str(run), "--device", "cpu", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["num_images"] == (12 if data else 4)
    forget()
    assert main(["train", str(run), "--fresh", *SHORT]) == 0


TOKENIZER = next(text for text in EXAMPLES if "register_tokenizer" in text)


def test_a_run_resumes_with_its_own_file(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    file = Path("my_runs.py")
    file.write_text(TOKENIZER)
    command = ["train", "my_runs.py:convolutions", *SHORT, *DATA]

    class StopSignals(train_module.StopSignals):
        @property
        def received(self) -> bool:
            return True

        @received.setter
        def received(self, value: bool) -> None: ...

    with monkeypatch.context() as patch:
        patch.setattr(train_module, "StopSignals", StopSignals)
        assert main(command) == 130
    forget()
    file.write_text(TOKENIZER.replace("nn.GELU()", "nn.ReLU()"))
    assert main(command) == 2
    said = capsys.readouterr().err
    assert "my_runs.py has changed since the run in runs/convolutions started" in said
    assert "`t2t train runs/convolutions`" in said
    forget()
    assert main(["train", "runs/convolutions", "--device", "cpu"]) == 0
    assert "code/my_runs.py was run for tokenizer='overlapping'" in caplog.text
    assert "GELU" in Path("runs/convolutions/code/my_runs.py").read_text()
    forget()
    model = t2t.load("runs/convolutions")
    assert type(model.tokenizer).__name__ == "Overlapping"
    Path("runs/convolutions/model.safetensors").rename("lone.safetensors")
    forget()
    with pytest.raises(t2t.UserError, match=r"tokenizer='overlapping', which is not"):
        t2t.load("lone.safetensors")
    lone = ["lone.safetensors", "--code", "my_runs.py"]
    assert main(["eval", *lone, "--data", "images", "--device", "cpu"]) == 0
    assert main(["show", *lone]) == 0
    assert "Overlapping" in capsys.readouterr().out
    assert isinstance(t2t.load("lone.safetensors"), type(model))


def test_the_command_line_adds_parts_to_a_built_in_recipe() -> None:
    Path("my_runs.py").write_text(TOKENIZER)
    command = [
        "train",
        "digits.t2t_vit",
        *SHORT,
        *DATA,
        "--set",
        "model_args.tokenizer=overlapping",
    ]
    assert main(command) == 2
    assert main([*command, "--code", "my_runs.py"]) == 0
    run = Path("runs", "digits.t2t_vit")
    assert (run / "code" / "my_runs.py").read_text() == TOKENIZER
    forget()
    plan = ["plan", "digits.t2t_vit", "--set", "model_args.tokenizer=overlapping"]
    assert main(plan) == 2
    assert main([*plan, "--code", "my_runs.py"]) == 0


def test_a_run_with_another_version_of_the_file_is_noted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    Path("my_runs.py").write_text(TOKENIZER)
    t2t.load_code("my_runs.py")
    sizes = {"num_classes": 3, "image_size": 8, "in_channels": 1, "dim": 32, "depth": 1}
    model = t2t.create_model("t2t_vit_7_32", tokenizer="overlapping", **sizes)
    t2t.save(model, "run")
    Path("run", "code").mkdir()
    Path("run", "code", "my_runs.py").write_text(TOKENIZER.replace("GELU", "ReLU"))
    t2t.load("run")
    assert "It was trained with another my_runs.py" in caplog.text


def test_a_tokenizer_with_a_wrong_grid_is_one_sentence() -> None:
    Path("my_runs.py").write_text(TOKENIZER.replace("(3, 2, 1)]", "(3, 4, 1)]"))
    t2t.load_code("my_runs.py")
    model = t2t.create_model("t2t_vit_7_32", tokenizer="overlapping", dim=32, depth=1)
    with pytest.raises(t2t.UserError, match=r"must be \(batch, 32, 8, 8\)"):
        model(torch.zeros(1, 3, 32, 32))


FILE = """
from dataclasses import replace
import t2t
from t2t.recipes import digits

def one():
    return digits.t2t_vit()

two = replace(digits.t2t_vit(), name="second")

def number():
    return 3

def wrong():
    return replace(two, epochs=0)

def broken():
    return 1 / 0

def sized(width):
    return two

def leaving():
    raise SystemExit(3)

class Recipes: ...
"""


def test_recipes_of_a_file_have_names() -> None:
    Path("mine.py").write_text(FILE)
    assert t2t.find_recipe("mine.py:one").name == "mine.one"
    assert t2t.find_recipe("mine.py:two").name == "second"
    assert "digits.t2t_vit" in all_recipes()
    Path("only.py").write_text(FILE[: FILE.index("two =")])
    assert t2t.find_recipe("only.py").name == "only.one"


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("no.py:one", r"^no\.py cannot be read \(No such file or directory\)\.$"),
        (
            "mine.py",
            r"^mine\.py holds one, two, number, wrong, broken, leaving: name one, as ",
        ),
        ("mine:one", r"no recipe 'mine:one'\. Did you mean mine\.py:one\?"),
        ("mine.py:tow", "^mine.py has no recipe 'tow'. Did you mean two?"),
        ("mine.py:number", "^mine.py:number is a int, not a t2t.Recipe or a function"),
        ("mine.py:Recipes", "^mine.py:Recipes is a type, not a t2t.Recipe"),
        ("mine.py:wrong", "^mine.py:wrong, line 15: epochs=0 must be from 1"),
        ("mine.py:broken", "^mine.py:broken, line 18: ZeroDivisionError: division by"),
        ("mine.py:leaving", "^mine.py:leaving, line 24: SystemExit: 3"),
        ("mine.py:sized", r"^mine.py:sized needs arguments \(width\): a recipe is a"),
        ("empty.py:one", "^empty.py holds no recipe"),
        ("cut.py:one", r"^cut.py, line 1: '\(' was never closed\.$"),
    ],
)
def test_what_is_no_recipe_is_one_sentence(word: str, message: str) -> None:
    Path("mine.py").write_text(FILE)
    Path("empty.py").touch()
    Path("cut.py").write_text("x = (")
    with pytest.raises(t2t.UserError, match=message):
        t2t.find_recipe(word)


def test_the_recipes_of_a_file_are_listed_without_calling_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("mine.py").write_text(
        "import t2t\n"
        "def wide():\n"
        '    """A wide one.\n\n    More on it."""\n'
        "    raise SystemExit('called')\n"
        "own = t2t.find_recipe('digits')\n"
        "def _hidden():\n    pass\n"
    )
    assert main(["recipes", "mine.py"]) == 0
    printed = capsys.readouterr().out.split("\n")[2:]
    assert [line.rstrip() for line in printed] == [
        "mine.py:wide   A wide one.",
        "mine.py:own",
        "",
    ]
    assert main(["recipes", "mine.py:wide", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert rows[0] == {"name": "mine.py:wide", "about": "A wide one."}
    Path("a.python").mkdir()
    Path("mine.py").rename("a.python/mine.py")
    assert main(["recipes", "a.python/mine.py"]) == 0
    assert "a.python/mine.py:wide" in capsys.readouterr().out
    Path("none.py").write_text("import t2t\n")
    assert main(["recipes", "none.py"]) == 2
    assert "none.py holds no recipe" in capsys.readouterr().err
