"""TensorBoard and wandb, with runs that resume."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from t2t.training.logging import metrics_log, trackers
from t2t.training.recipe import Recipe
from t2t.training.runtime import Runtime
from t2t.training.train import train

Tiny = Callable[..., Recipe]


def install_only(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = SimpleNamespace(find_spec=lambda each: True if each == name else None)
    monkeypatch.setattr(trackers, "importlib", SimpleNamespace(util=found))


def test_a_tracker_without_room_does_not_stop_a_run(
    tiny: Tiny, cpu: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full:
        def log(self, *_: object) -> None:
            raise OSError(28, "No space left on device")

        close = log

    monkeypatch.setattr(metrics_log, "open_trackers", lambda *_: [Full()])
    assert train(tiny(epochs=1), folder=tmp_path, runtime=cpu, quiet=True).finished
    reported = (tmp_path / "log.txt").read_text()
    assert (
        reported.count("Full failed (No space left on device) and was switched off")
        == 1
    )


def test_a_resumed_run_is_the_same_to_wandb(
    tiny: Tiny,
    cpu: Runtime,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    interrupt_after: Callable[[int | None], None],
) -> None:
    begun: list[dict[str, Any]] = []

    def init(**options: Any) -> SimpleNamespace:
        begun.append(options)
        if len(begun) == 3:
            raise RuntimeError("no network\nand a trace")
        return SimpleNamespace(log=lambda row, step: None, finish=lambda: None)

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.delenv("WANDB_RUN_ID", raising=False)
    install_only("wandb", monkeypatch)
    for number in (3, 2, None):
        interrupt_after(number)
        result = train(tiny(), folder=tmp_path / "run", runtime=cpu, quiet=True)
    assert result.finished
    assert [options["id"] for options in begun] == [begun[0]["id"]] * 3
    reported = (tmp_path / "run/log.txt").read_text()
    assert reported.count("A tracker could not be started (no network).") == 1
    interrupt_after(None)
    train(tiny(), folder=tmp_path / "run", runtime=cpu, quiet=True, fresh=True)
    assert begun[3]["id"] != begun[0]["id"]


def test_tensorboard_hides_steps_that_are_done_again(
    tiny: Tiny,
    cpu: Runtime,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    interrupt_after: Callable[[int | None], None],
) -> None:
    opened = []

    class SummaryWriter:
        def __init__(self, folder: str, purge_step: int) -> None:
            opened.append((Path(folder), purge_step))

        def add_scalar(self, key: str, value: float, step: int) -> None:
            assert step >= opened[-1][1]

        def close(self) -> None: ...

    stand_in = SimpleNamespace(SummaryWriter=SummaryWriter)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", stand_in)
    install_only("tensorboard", monkeypatch)
    for number in (5, None):
        interrupt_after(number)
        train(tiny(), folder=tmp_path, runtime=cpu, quiet=True)
    assert opened == [(tmp_path / "tensorboard", 1), (tmp_path / "tensorboard", 6)]
