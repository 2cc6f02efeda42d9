"""What is printed at each level."""

import logging
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from PIL import Image

import t2t
from t2t import cli
from t2t.cli import main
from t2t.commands.options import warn, with_log_level
from t2t.errors import UserError
from t2t.screen import show_progress

Output = pytest.CaptureFixture[str]


@pytest.fixture
def images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for number in range(8):
        folder = tmp_path / "images" / "ab"[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (9, 9), (30 * number, 0, 0)).save(folder / f"{number}.png")
    (tmp_path / "images/a/broken.png").write_bytes(b"\x89PNG\r\n\x1a\n broken")
    return tmp_path / "images"


SMALL = "--set model_args.depth=1 --set model_args.dim=16 --set model_args.num_heads=2"


def train(images: Path, level: str, *more: str) -> list[str]:
    given = ["train", "--data", str(images), "--folder", level, "--epochs", "1"]
    return [*given, *SMALL.split(), "--device", "cpu", "--log-level", level, *more]


def test_a_run_prints_what_its_level_lets_through(images: Path, capsys: Output) -> None:
    assert main(train(images, "info")) == 0
    info = capsys.readouterr()
    assert "epoch 1/1" in info.out
    assert "broken.png" in info.out
    assert "model.safetensors" in info.out

    assert main(train(images, "warning")) == 0
    warned = capsys.readouterr()
    assert warned.out == ""
    assert "broken.png" in warned.err
    assert "epoch" not in warned.err

    assert main(train(images, "error")) == 0
    silent = capsys.readouterr()
    assert (silent.out, silent.err) == ("", "")
    for level in ("info", "warning", "error"):
        log = (images.parent / level / "log.txt").read_text()
        assert "epoch 1/1" in log
        assert "broken.png" in log


def test_python_sets_the_level_by_the_logger(images: Path, capsys: Output) -> None:
    logger = logging.getLogger("t2t")
    logger.setLevel("ERROR")
    try:
        t2t.train(data=images, folder="quiet", epochs=1, set=SMALL.split()[1::2])
    finally:
        logger.setLevel(logging.NOTSET)
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "")


def speak() -> None:
    """Says something at every level.

    Examples:
      t2t speak
    """
    logging.getLogger("library").info("a library's info")
    logging.getLogger("library").warning("a library's warning")
    warnings.warn("a Python warning", stacklevel=1)
    warn("our warning")
    with show_progress("working") as update:
        update(1, 1)
    print("the result")


@pytest.mark.parametrize(
    ("level", "printed"),
    [
        ("debug", "a library's info|a library's warning|a Python warning|our|working"),
        ("info", "a library's warning|a Python warning|our|working"),
        ("warning", "a library's warning|a Python warning|our"),
        ("error", ""),
    ],
)
def test_messages_of_a_command(level: str, printed: str) -> None:
    script = (
        "import sys; sys.path[:0] = [sys.argv[1]]; import test_log_level as test;"
        "from t2t import cli; from t2t.commands.options import with_log_level;"
        "cli.COMMANDS['speak'] = with_log_level(test.speak);"
        "sys.exit(cli.main(['speak', '--log-level', sys.argv[2]]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(Path(__file__).parent), level],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "the result\n"
    every = "a library's info|a library's warning|a Python warning|our|working"
    found = [words for words in every.split("|") if words in done.stderr]
    assert "|".join(found) == printed


def fail() -> None:
    """Fails.

    Examples:
      t2t fail
    """
    raise UserError("This cannot be.")


@pytest.mark.parametrize("level", ["debug", "info"])
def test_debug_shows_where_an_error_comes_from(
    level: str, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(cli.COMMANDS, "fail", with_log_level(fail))
    assert main(["fail", "--log-level", level]) == 2
    printed = capsys.readouterr().err
    assert "t2t: This cannot be.\n" in printed
    assert ("Traceback" in printed) == (level == "debug")


def test_the_level_is_restored_by_a_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(cli.COMMANDS, "fail", with_log_level(fail))
    root, logger = logging.getLogger(), logging.getLogger("t2t")
    before = root.level, root.handlers[:], logger.level, root.manager.disable
    for level in ("debug", "error"):
        main(["fail", "--log-level", level])
        after = root.level, root.handlers[:], logger.level, root.manager.disable
        assert after == before


def test_an_unknown_level_is_an_error(capsys: Output) -> None:
    assert main(["models", "--log-level", "loud"]) == 2
    assert capsys.readouterr().err == (
        "t2t: --log-level takes debug, error, info, warning; got loud.\n"
    )
