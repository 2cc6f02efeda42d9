"""Lines about what takes more than two seconds."""

import io
import time

import pytest
from rich.console import Console

from t2t.training.logging import stage as stage_module
from t2t.training.logging.stage import stage


def printed(console: Console) -> list[str]:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO())


def test_what_is_quick_prints_nothing(console: Console) -> None:
    with stage(console, "Opening"):
        pass
    assert printed(console) == []


def test_what_is_slow_is_announced_repeated_and_timed(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage_module, "ANNOUNCE_AFTER", 0.05)
    monkeypatch.setattr(stage_module, "REPEAT_EVERY", 0.05)
    done = iter(range(1, 100))
    with stage(console, "Compiling kernels", lambda: f"{next(done)} of 24"):
        time.sleep(0.3)
    first, second, *_, last = printed(console)
    assert first == "Compiling kernels 1 of 24 ... 0 s"
    assert second == "Compiling kernels 2 of 24 ... 0 s"
    assert last.startswith("Compiling kernels: 0.")
    assert last.endswith(" s")


def test_a_terminal_keeps_the_last_line_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_module, "ANNOUNCE_AFTER", 0.05)
    console = Console(file=io.StringIO(), force_terminal=True, width=60)
    with stage(console, "Opening 3 images"):
        time.sleep(0.3)
    assert printed(console)[-1].endswith("Opening 3 images: 0.3 s")


def test_an_error_ends_the_stage_without_a_time(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage_module, "ANNOUNCE_AFTER", 0.05)

    def read() -> None:
        with stage(console, "Reading"):
            time.sleep(0.1)
            raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        read()
    assert printed(console) == ["Reading ... 0 s"]


def test_a_quiet_console_starts_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_module, "ANNOUNCE_AFTER", 0.01)
    console = Console(file=io.StringIO(), quiet=True)
    with stage(console, "Reading"):
        time.sleep(0.05)
    assert printed(console) == []
