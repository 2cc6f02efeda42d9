"""`t2t eval` and `t2t predict` as users meet them."""

import csv
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import nn

from t2t.analysis.attention_figure import ExplainedImage, draw_explanations
from t2t.cli import main
from t2t.commands.options import check_writable
from t2t.commands.weights_and_images import is_run
from t2t.data.sources import open_source
from t2t.models.create import create_model
from t2t.models.weights import save

Output = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    torch.manual_seed(1)
    small = {"dim": 16, "depth": 1, "num_heads": 1, "token_dim": 8, "image_size": 8}
    model = create_model("t2t_vit_7_32", num_classes=10, in_channels=1, **small)
    nn.init.normal_(model.head.weight, std=3.0)
    extra = {
        "image_size": [8, 8],
        "channels": 1,
        "mean": [0.3],
        "std": [0.4],
        "crop_fraction": 0.8,
        "data": "digits",
    }
    # Another order than the folders' below.
    names = [str(number) for number in range(9, -1, -1)]
    save(model, folder, name="t2t_vit_7_32", class_names=names, extra=extra)
    return folder


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    source = open_source("digits")
    for index in range(60):
        place = folder / source.classes[source.labels[index]]
        place.mkdir(exist_ok=True)
        pixels = torch.as_tensor(source.read(index))[0].numpy()
        picture = Image.fromarray(pixels).resize((8 + index, 60 - index // 2))
        picture.convert("RGB" if index % 3 else "L").save(place / f"{index}.jpg")
    return folder


def test_eval_prints_and_draws(
    run: Path, tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    picture = tmp_path / "home" / "confusion.png"
    picture.parent.mkdir()
    monkeypatch.setenv("HOME", str(picture.parent))
    monkeypatch.chdir(tmp_path)
    words = ["eval", str(run), "--batch-size", "128", "--picture=~/confusion.png"]
    assert main(words) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["home"]
    told = capsys.readouterr()
    assert "digits (val): 360 images of 10 classes, at 8×8 pixels" in told.out
    assert "top-1 " in told.out
    assert "images/s, cpu, fp32, batches of 128" in told.out
    assert "most often confused with" in told.out
    assert f"Picture: {picture}" in told.err
    assert picture.stat().st_size > 10_000


def test_a_picture_goes_home_without_a_shell(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(tmp_path / "here")
    assert main(["eval", str(run), "--picture=~/confusion.png"]) == 0
    assert (home / "confusion.png").is_file()
    assert not [*Path().iterdir()]


def test_a_picture_is_tried_by_several_processes_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    touch = Path.touch

    def touch_and_lose(path: Path) -> None:
        touch(path)
        path.unlink()  # as another process does, which tries the same file

    monkeypatch.setattr(Path, "touch", touch_and_lose)
    check_writable("--picture", tmp_path / "confusion.png")


def test_eval_prints_notes_beside_the_result(
    run: Path, images: Path, tmp_path: Path, capsys: Output
) -> None:
    place = tmp_path / "photos" / "3"
    place.mkdir(parents=True)
    shutil.copy(next((images / "3").iterdir()), place / "good.jpg")
    (place / "two\nlines.jpg").write_text("hello")
    assert main(["eval", str(run), "--data", str(place.parent), "--json"]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["num_images"] == 1
    assert "photos has 1 of the model's 10 classes." in told.err
    name = f"{place}/two\\nlines.jpg"
    assert f"t2t: Skipped a damaged image: {name}\n" in told.err


def test_one_of_torchruns_processes_prints_the_score(
    capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "t2t.training.evaluation.evaluate_model.evaluate_model", lambda *_, **__: None
    )
    assert main(["eval", "builtin", "--json"]) == 0
    told = capsys.readouterr()
    assert (told.out, told.err) == ("", "")


def test_predict_and_eval_agree(run: Path, images: Path, capsys: Output) -> None:
    assert main(["eval", str(run), "--data", str(images), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert main(["predict", str(run), str(images), "--top", "3", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(rows) == facts["num_images"] == 60
    seen: dict[str, list[str]] = {}
    for row in rows:
        truth = Path(row["image"]).parent.name
        seen.setdefault(truth, []).append(row["predictions"][0]["class"])
        probabilities = [guess["probability"] for guess in row["predictions"]]
        assert probabilities == sorted(probabilities, reverse=True)
    right = sum(guess == truth for truth, some in seen.items() for guess in some)
    assert 100 * right / 60 == pytest.approx(facts["top1"], abs=1e-3)
    assert len({guess for some in seen.values() for guess in some}) > 3
    for row in facts["classes"]:
        confused_with = {
            other["name"]: other["num_images"] for other in row["confused_with"]
        }
        mistakes = [guess for guess in seen[row["class"]] if guess != row["class"]]
        assert confused_with == {name: mistakes.count(name) for name in mistakes}


def test_predict_names_what_failed_and_goes_on(
    run: Path,
    images: Path,
    tmp_path: Path,
    capsys: Output,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    good = str(next((images / "3").iterdir()))
    text = tmp_path / "text.jpg"
    text.write_text("hello")
    long = "a" * 300 + ".jpg"
    listed = f"{long}\n{good}\n{text}\n{tmp_path / 'none.png'}\n"
    monkeypatch.setattr("sys.stdin", io.StringIO(listed))
    assert main(["predict", str(run), "-", "--csv", "--top", "2"]) == 1
    told = capsys.readouterr()
    rows = list(csv.DictReader(told.out.splitlines()))
    assert [row["image"] for row in rows] == [good, good]
    assert f"{text} was skipped: not an image that can be read." in told.err
    assert "none.png was skipped: No such file or directory." in told.err
    assert f"{long} was skipped: File name too long." in told.err


def test_predict_takes_a_path_from_here(
    images: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = next((images / "3").iterdir()).name
    monkeypatch.chdir(images / "4")
    monkeypatch.setenv("COLUMNS", "200")
    (images / "4" / "own.jpg").write_bytes((images / "3" / image).read_bytes())
    for path in ("./own.jpg", f"../3/{image}"):
        assert main(["predict", path, "--top", "1"]) == 0
        assert path in capsys.readouterr().out
    (images / "4" / "own.jpg").unlink()


def test_predict_takes_names_of_any_bytes(
    run: Path,
    images: Path,
    tmp_path: Path,
    capsysbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = os.fsencode(tmp_path) + b"/\xff.jpg"
    Path(os.fsdecode(name)).write_bytes(next(images.glob("3/*.jpg")).read_bytes())
    listed = io.TextIOWrapper(io.BytesIO(name + b"\n"), encoding="utf-8")
    monkeypatch.setattr("sys.stdin", listed)
    assert main(["predict", str(run), "-", "--csv", "--top", "1"]) == 0
    assert name in capsysbinary.readouterr().out


def test_predict_waits_for_no_pipe(run: Path, tmp_path: Path, capsys: Output) -> None:
    os.mkfifo(tmp_path / "pipe.jpg")
    assert main(["predict", str(run), str(tmp_path), f"{tmp_path}/a\0b"]) == 2
    told = capsys.readouterr().err
    assert "pipe.jpg was skipped: not a regular file." in told
    assert "not a path" in told


def test_predict_prints_a_plain_table(run: Path, images: Path, capsys: Output) -> None:
    files = sorted(str(path) for path in (images / "7").iterdir())
    assert main(["predict", str(run), *files, "--top", "1"]) == 0
    told = capsys.readouterr()
    lines = told.out.splitlines()
    assert not told.err
    assert lines[0].split() == ["image", "class", "probability"]
    assert [line.split()[0] for line in lines[2:]] == files
    assert not any("\x1b" in line for line in lines)


def test_predict_draws_what_it_sees(
    run: Path, images: Path, tmp_path: Path, capsys: Output, monkeypatch
) -> None:
    monkeypatch.setattr("t2t.commands.predict.MAX_DRAWN", 2)
    drawn = []

    def draw(seen: list[ExplainedImage], path: str, title: str) -> Path:
        drawn.extend(seen)
        return draw_explanations(seen, path, title)

    monkeypatch.setattr("t2t.analysis.attention_figure.draw_explanations", draw)
    files = sorted(str(path) for path in (images / "7").iterdir())[:3]
    words = ["predict", str(run), *files, "--json", "--top", "1"]
    assert main([*words, "--picture", f"{tmp_path}/new/seen.png"]) == 2
    assert f"there is no folder {tmp_path}/new; create it" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
    (tmp_path / "new").mkdir()
    assert main([*words, "--picture", f"{tmp_path}/new/seen.png"]) == 0
    told = capsys.readouterr()
    rows = [json.loads(line)["predictions"][0] for line in told.out.splitlines()]
    assert [seen.class_name for seen in drawn] == [row["name"] for row in rows[:2]]
    assert [seen.name for seen in drawn] == [Path(file).name for file in files[:2]]
    assert f"Picture: {tmp_path}/new/seen.png" in told.err
    assert "It shows the first 2 of 3 images." in told.err
    assert (tmp_path / "new/seen.png").stat().st_size > 10_000


def test_predict_says_what_it_assumed(
    images: Path, tmp_path: Path, capsys: Output
) -> None:
    model = create_model("resnet18", num_classes=2)
    torch.save(model.state_dict(), tmp_path / "mine.pth")
    words = ["predict", str(tmp_path / "mine.pth"), str(images / "3"), "--top", "9"]
    assert main(words) == 2
    assert "--model resnet50, in t2t train --set model=" in capsys.readouterr().err
    assert main([*words, "--model", "resnet18", "--json"]) == 0
    told = capsys.readouterr()
    assert "does not name its 2 classes; they are numbered" in told.err
    assert "does not state its preprocessing" in told.err
    (first, *_) = map(json.loads, told.out.splitlines())
    assert {guess["class"] for guess in first["predictions"]} == {"class 0", "class 1"}


@pytest.mark.parametrize("listed", [None, io.StringIO("\n")])
def test_an_empty_list_is_reported(
    listed: io.StringIO | None, run: Path, capsys: Output, monkeypatch
) -> None:
    monkeypatch.setattr(sys, "stdin", listed)  # None where it is closed
    assert main(["predict", str(run), "-"]) == 2
    assert capsys.readouterr().err == (
        "t2t: The list on standard input is empty; give one path per line.\n"
    )


def test_a_file_that_is_not_written_leaves_no_folders(
    tmp_path: Path, capsys: Output
) -> None:
    assert main(["eval", "nowhere", "--picture", f"{tmp_path}/new/one/c.png"]) == 2
    assert not [*tmp_path.iterdir()]
    (tmp_path / "c.png").mkdir()
    assert main(["eval", "nowhere", "--picture", f"{tmp_path}/c.png"]) == 2
    assert "c.png cannot be written (Is a directory)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("predict RUN EMPTY", "No image could be read"),
        ("predict RUN", "No images are given"),
        ("predict builtin", "No images are given beside builtin"),
        ("predict RUN NOTHING", "A value is empty; `t2t predict --help` gives"),
        ("predict nowhere", "There is no file or folder nowhere; give"),
        ("predict https://a.b/x.jpg", "download https://a.b/x.jpg first"),
        ("predict https://a.b/x.pth", "No images are given beside https://a.b/x.pth"),
        ("predict RUN RUN", "is a run, not images: give it once, before the images"),
        ("predict x.png RUN", "is a run, not images: give it once, before the images"),
        (f"predict {'a' * 300} x.png", "cannot be opened (File name too long)"),
        (f"eval RUN --data {'a' * 300}", "cannot be opened (File name too long)"),
        ("predict RUN EMPTY --top 0", "--top 0 is too small"),
        ("predict RUN EMPTY --json --csv", "are mutually exclusive"),
        ("predict x.png --picture a.txt", "must end in .png, .pdf or .svg"),
        ("predict EMPTY x.png", "has no model.safetensors in it"),
        ("predict nowhere x.png", "There is no file nowhere"),
        ("predict RUN x.png --device tpu", "device='tpu' is not available"),
        ("eval RUN --batch-size 0", "--batch-size 0 is too small"),
        ("eval RUN --data EMPTY", "is empty: it should hold"),
        ("eval RUN --data digitz", "Did you mean digits"),
        ("eval RUN --picture a.txt", "must end in .png, .pdf or .svg"),
        ("eval RUN --picture /dev/null/c.png", "--picture /dev/null/c.png cannot be"),
        ("predict holiday.heic", "No image could be read."),
    ],
)
def test_a_mistake_is_one_sentence(
    words: str, sentence: str, run: Path, tmp_path: Path, capsys: Output
) -> None:
    places = {"RUN": str(run), "EMPTY": str(tmp_path), "NOTHING": ""}
    assert main([places.get(word, word) for word in words.split()]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert sentence in told.err.splitlines()[-1]


def test_a_run_is_not_mistaken_for_images(tmp_path: Path) -> None:
    for name in ("recipe.json", "mine.safetensors", "cat.jpg"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    assert [is_run(str(tmp_path / name)) for name in ("recipe.json", "cat.jpg")] == [
        True,
        False,
    ]
    assert is_run(str(tmp_path / "mine.safetensors"))
    assert not is_run(str(tmp_path / "nowhere"))


def test_predicting_loads_only_occlusion_map(run: Path, images: Path) -> None:
    script = (
        "import sys; from t2t.cli import main; code = main(sys.argv[1:]); "
        "heavy = {'timm', 'matplotlib', 'sklearn'} & sys.modules.keys(); "
        "sys.exit(f'imported {heavy}' if heavy else code)"
    )
    words = ["predict", str(run), str(next(images.glob("*/*.jpg")))]
    done = subprocess.run(
        [sys.executable, "-c", script, *words], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_the_pixels_of_an_image_can_be_limited(
    run: Path, tmp_path: Path, capsys: Output
) -> None:
    path = tmp_path / "a.png"
    Image.new("RGB", (40, 30)).save(path)
    words = ["predict", str(run), str(path), "--device", "cpu", "--max-pixels"]
    assert main([*words, "1200"]) == 0
    assert main([*words, "1199"]) == 2
    assert f"{path} was skipped: its 40 × 30 pixels" in capsys.readouterr().err
    assert main([*words, "0"]) == 2
    assert main([*words, str(2**30)]) == 2
    assert "--max-pixels 1073741824 is too large" in capsys.readouterr().err


def test_eval_writes_a_page_of_mistakes(
    run: Path, images: Path, tmp_path: Path, capsys: Output
) -> None:
    page = tmp_path / "mistakes.html"
    words = ["eval", str(run), "--data", str(images), "--report", str(page)]
    assert main([*words, "--json"]) == 0
    told = capsys.readouterr()
    report = json.loads(told.out)
    mistakes = report["report"]["mistakes"]
    assert len(mistakes) == round(60 * (1 - report["top1"] / 100))
    assert all(Path(row["path"]).is_file() for row in mistakes)
    assert f"Report: {page} ({len(mistakes)} mistakes, " in told.err
    assert "training images: 1,437 of 1,437" in told.err
    table = page.with_suffix(".csv").read_text()
    assert table.startswith("finding,split,path,label,predicted,confidence,")
    # The images are digits that the model's own training set holds, too.
    assert len(report["report"]["near_duplicates"]) < 60
    assert main([*words, "--train-images", "0"]) == 0
    assert "Not searched." in page.read_text()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--report page.png", "must end in .html (--picture draws the confusion"),
        ("--report no/page.html", "there is no folder no; create it"),
        ("--report page.html --train-images -1", "--train-images -1 is too small"),
    ],
)
def test_a_page_that_cannot_be_written_is_one_sentence(
    words: str,
    sentence: str,
    run: Path,
    capsys: Output,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["eval", str(run), *words.split()]) == 2
    told = capsys.readouterr()
    assert (told.out, told.err.count("\n")) == ("", 1)
    assert sentence in told.err
    assert not list(tmp_path.iterdir())
