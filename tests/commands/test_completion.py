"""What a shell completes."""

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from t2t.cli import main

TAB = b"\t"


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The script for bash."""
    done = subprocess.run(
        [sys.executable, "-m", "t2t", "completion", "bash"], capture_output=True
    )
    assert done.returncode == 0, done.stderr
    path = tmp_path_factory.mktemp("completion") / "t2t"
    path.write_bytes(done.stdout)
    return path


class Bash:
    """An interactive bash in a terminal."""

    def __init__(self, folder: Path) -> None:
        self.terminal, inside = pty.openpty()
        environment = {**os.environ, "PS1": "ready> ", "INPUTRC": os.devnull}
        self.process = subprocess.Popen(
            ["bash", "--norc", "--noprofile", "-i"],
            stdin=inside,
            stdout=inside,
            stderr=inside,
            cwd=folder,
            env={**environment, "TERM": "dumb"},
            start_new_session=True,
        )
        os.close(inside)

    def type(self, keys: bytes, until: bytes, seconds: float = 30) -> bytes:
        """Presses keys, and returns what is shown until these words."""
        os.write(self.terminal, keys)
        shown, end = b"", time.monotonic() + seconds
        while until not in shown and time.monotonic() < end:
            if select.select([self.terminal], [], [], 0.2)[0]:
                shown += os.read(self.terminal, 4096)
        return shown

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.terminal)


@pytest.fixture
def bash(script: Path, tmp_path: Path) -> Iterator[Bash]:
    if shutil.which("bash") is None:
        pytest.skip("there is no bash")
    (tmp_path / "photographs").mkdir()
    shell = Bash(tmp_path)
    shell.type(b"source %s; echo loa''ded\n" % bytes(script), until=b"loaded")
    yield shell
    shell.close()


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        (b"t2t tr", b"t2t train "),
        (b"t2t train --parall", b"t2t train --parallelism "),
        (b"t2t train --parallelism hyb", b"--parallelism hybrid "),
        (b"t2t train --data photog", b"--data photographs/"),
        (b"t2t predict photog", b"predict photographs/"),
        (b"t2t comp", b"t2t completion "),
    ],
)
def test_bash_completes(typed: bytes, completed: bytes, bash: Bash) -> None:
    assert completed in bash.type(typed + TAB, until=completed)


def test_bash_lists_what_is_possible(bash: Bash) -> None:
    shown = bash.type(b"t2t train --fr" + TAB + TAB, until=b"--fresh")
    assert {b"--from", b"--freeze", b"--fresh"} <= {*shown.split()}
    bash.type(b"\x03", until=b"ready>")
    shown = bash.type(b"t2t train --distill " + TAB + TAB, until=b"soft")
    assert b"hard" in shown
    assert b"None" not in shown


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_have_a_script(
    shell: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["completion", shell]) == 0
    printed = capsys.readouterr().out
    assert "'--parallelism'" in printed
    assert "'None'" not in printed
    if shutil.which(shell) is not None:
        file = tmp_path / "script"
        file.write_text(printed)
        assert subprocess.run([shell, "-n", file]).returncode == 0


def test_an_unknown_shell_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "tcsh"]) == 2
    assert "bash, fish, zsh" in capsys.readouterr().err
