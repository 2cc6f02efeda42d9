"""`t2t bench` as users meet it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from t2t.cli import main
from t2t.commands.bench_options import select_recipes, select_runtimes
from t2t.config import to_json
from t2t.errors import UserError
from t2t.lab.bench import growth
from t2t.recipes import find_recipe
from t2t.recipes.default import with_model
from t2t.training.run_files import write_json

Output = pytest.CaptureFixture[str]
QUICK = ["--image-size=32", "--batch-size=1", "--seconds=0.01", "--device=cpu"]


def test_models_and_peers_stand_in_one_table(capsys: Output, tmp_path: Path) -> None:
    out = tmp_path / "rows.json"
    words = ["bench", "t2t_vit_7", "deit_tiny_patch16_224", "--mode", "both", *QUICK]
    assert main([*words, "--out", str(out), "--markdown"]) == 0
    told = capsys.readouterr()
    assert told.out.startswith("| model | mode |")
    rows = json.loads(out.read_text())
    assert [(row["model"], row["mode"]) for row in rows] == [
        ("t2t_vit_7", "train"),
        ("deit_tiny_patch16_224", "train"),
        ("t2t_vit_7", "infer"),
        ("deit_tiny_patch16_224", "infer"),
    ]
    for row in rows:
        assert row["images_per_second"] > 0
        assert f"| {row['model']} | {row['mode']} | 32 | 1 | fp32 |" in told.out
        assert f"{row['model']}, {row['mode']}, 32 px" in told.err


def test_a_recipe_is_timed_with_another_network(capsys: Output) -> None:
    words = ["bench", "resnet18_32", "--recipe", "digits", "--batch-size", "2"]
    assert main([*words, "--seconds", "0.01", "--device", "cpu"]) == 0
    assert "resnet18_32, train, 8 px, batch 2, fp32" in capsys.readouterr().err
    assert main(["bench", "resnet18_3", "--recipe", "digits"]) == 2
    assert "Did you mean resnet18_32" in capsys.readouterr().err


def test_a_recipe_is_timed_as_it_is(tmp_path: Path) -> None:
    recipe = with_model(find_recipe("digits"), "resnet18_32")
    optimizer = replace(recipe.optimizer, name="sgd")
    own = replace(recipe, drop_path=0.2, optimizer=optimizer)
    write_json(tmp_path / "own.json", to_json(own))
    assert select_recipes((), str(tmp_path / "own.json"), (), ()) == [own]
    (other,) = select_recipes(("resnet18",), str(tmp_path / "own.json"), (16,), (4,))
    assert (other.model, other.image_size) == ("resnet18", (16, 16))
    assert other.batch_size == 4


def test_models_have_their_own_size_without_a_recipe() -> None:
    small, large = select_recipes(("t2t_vit_7_32", "t2t_vit_7"), None, (), ())
    assert (small.image_size, large.image_size) == ((32, 32), (224, 224))


def test_a_profile_names_what_takes_longest(capsys: Output) -> None:
    assert main(["bench", "t2t_vit_7", "--mode", "infer", "--profile", *QUICK]) == 0
    told = capsys.readouterr().out
    assert "aten::addmm" in told
    assert "images/s" in told


def test_growth_is_drawn_beside_the_rows(capsys: Output, tmp_path: Path) -> None:
    out = tmp_path / "rows.json"
    words = ["bench", "t2t_vit_7", "--mode", "infer", "--grow", "depth", *QUICK]
    assert main([*words, "--out", str(out), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row.get("depth") for row in rows] == [None, 2, 4, 10, 14]
    assert json.loads(out.read_text()) == rows
    assert out.with_suffix(".png").stat().st_size > 10_000


def test_growth_replaces_its_own_picture_only(
    capsys: Output, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    words = ["bench", "t2t_vit_7", "--mode", "infer", "--grow", "depth", *QUICK]
    words += ["--out", str(tmp_path / "rows.json")]
    picture = tmp_path / "rows.png"
    growth.draw_growth([], [], ["depth"], "G", picture)
    drawn = picture.read_bytes()
    monkeypatch.setattr("t2t.lab.bench.measure.measure_cases", lambda *_, **__: [])
    assert main(words) == 0
    assert f"Picture: {picture}" in capsys.readouterr().err
    assert picture.read_bytes() != drawn
    Image.new("RGB", (4, 4)).save(picture)
    theirs = picture.read_bytes()
    for data in (theirs, b"my notes"):
        picture.write_bytes(data)
        assert main(words) == 2
        told = capsys.readouterr().err
        assert f"--grow draws {picture}, but a file that it did not draw" in told
        assert picture.read_bytes() == data


def test_a_file_that_cannot_be_written_is_reported_before_measuring(
    capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("t2t.lab.bench.measure.measure_cases", None)  # never gets there
    out = "/proc/rows.json"
    assert main(["bench", "t2t_vit_7", *QUICK, "--out", out]) == 2
    assert f"--out {out} cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["t2t_vit_1"], "There is no model 't2t_vit_1'. Did you mean"),
        (
            ["t2t_vit_7", "--batch-size", "0"],
            "--batch-size 0 is too small: give 1 or more.",
        ),
        (["t2t_vit_7", "--image-size", "0"], "--image-size 0 is too small"),
        (["t2t_vit_7", "--seconds", "0"], "--seconds 0 must be more than 0, and"),
        (["t2t_vit_7", "--launch", "graph", "--device", "cpu"], "needs CUDA"),
        (["t2t_vit_7", "--grow", "size"], "give --out PATH.json"),
        (["deit_tiny_patch16_224", "--grow", "depth", "--out", "x.json"], "depth"),
        (["t2t_vit_7", "--json", "--markdown"], "are mutually exclusive"),
        ([], "No model is given"),
        (["--recipe", "cifar10.t2t_vit_8"], "There is no recipe"),
        (["t2t_vit_7", "--data", "nowhere"], "no file or folder nowhere"),
        (["t2t_vit_7", "--data", "digits", "--mode", "infer"], "leave --mode"),
        (["t2t_vit_7", "--repeat", "2", "--resident"], "Leave --repeat and --resident"),
        (["--recipe", "digits", "--workers", "2"], "without --data no files are read"),
        (["t2t_vit_7", "--grow", "size", "--out", "a.png"], "give --out PATH.json"),
        (["t2t_vit_7", "--seconds", "inf"], "--seconds inf must be"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes_are_reported_in_one_sentence(
    capsys: Output, words: list[str], sentence: str
) -> None:
    assert main(["bench", *words]) == 2
    told = capsys.readouterr().err
    assert sentence in told
    assert told.count("\n") == 1


def test_the_trainers_step_on_cuda_is_always_a_graph() -> None:
    for launch, compiled in (("graph", "on"), ("eager_graph", "off"), (None, "auto")):
        (runtime,) = select_runtimes("cuda", ("bf16",), launch, None, on_cuda=True)
        assert runtime.compile == compiled
    with pytest.raises(UserError, match="give graph"):
        select_runtimes("cuda", ("bf16",), "eager", None, on_cuda=True)
    (runtime,) = select_runtimes("cpu", ("fp32",), "compiled", None, on_cuda=False)
    assert runtime.compile == "on"


@pytest.mark.parametrize("parallelism", ["fsdp", "hybrid"])
def test_a_sharded_step_on_cuda_is_a_graph_or_compiled(parallelism: Any) -> None:
    choices = (("compiled", "on"), ("eager_graph", "off"), (None, "auto"))
    for launch, compiled in choices:
        (runtime,) = select_runtimes("cuda", ("bf16",), launch, None, True, parallelism)
        assert (runtime.compile, runtime.parallelism) == (compiled, parallelism)
    for launch in ("graph", "eager"):
        with pytest.raises(UserError, match="give eager_graph or compiled"):
            select_runtimes("cuda", ("bf16",), launch, None, True, parallelism)
