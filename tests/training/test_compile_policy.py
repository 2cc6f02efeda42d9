"""When a run is compiled, and that its resume does the same."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from t2t.models.create import create_model
from t2t.training import auto_compile
from t2t.training.checkpoint_writer import CheckpointWriter
from t2t.training.compile_policy import (
    CompileDecision,
    compiles_at_once,
    earlier_decision,
    first_decision,
    seconds_saved,
)
from t2t.training.distributed import World
from t2t.training.logging.clock import Clock
from t2t.training.recipe import Phase, Recipe
from t2t.training.run_files import read_json
from t2t.training.run_folder import RunFolder
from t2t.training.runtime import Runtime
from t2t.training.step import Stepper
from t2t.training.step_result import Requests
from t2t.training.train import train
from t2t.training.trainer import Trainer

Tiny = Callable[..., Recipe]
ALONE = World(0, 1, torch.device("cpu"))


@pytest.mark.parametrize(
    ("choice", "device", "size", "others", "expected"),
    [
        ("on", "cpu", 1, {}, True),
        ("off", "cuda", 4, {"parallelism": "fsdp"}, False),
        ("auto", "cpu", 2, {}, False),
        ("auto", "cuda", 1, {"parallelism": "fsdp"}, False),
        ("auto", "cuda", 4, {}, False),  # a CUDA graph
        ("auto", "cuda", 4, {"parallelism": "hybrid"}, False),
        ("on", "cuda", 4, {"parallelism": "fsdp"}, True),
        ("auto", "cuda", 4, {"precision": "fp16"}, True),
    ],
)
def test_what_is_compiled_from_the_first_step(
    choice: Any, device: str, size: int, others: Any, expected: bool
) -> None:
    world = World(0, size, torch.device(device))
    assert compiles_at_once(Runtime(compile=choice, **others), world) is expected


def test_compiling_pays_in_long_runs_and_sooner_for_other_models() -> None:
    ours = create_model("t2t_vit_7_32")
    other = create_model("test_resnet")
    assert seconds_saved(ours, 40 * 60) < 0 < seconds_saved(ours, 2 * 3600)
    assert seconds_saved(other, 5 * 60) < 0 < seconds_saved(other, 15 * 60)


@pytest.fixture
def captured_anew() -> list[int]:
    """The steps before which graphs of earlier steps are dropped."""
    return []


@pytest.fixture
def compiles(captured_anew: list[int], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The steps at which a run that could use CUDA graphs would be compiled."""
    found: list[int] = []

    def compile_(stepper: Stepper) -> None:
        stepper.forward_backward.compiled = True
        found.append(stepper.state.step)

    monkeypatch.setattr(Stepper, "compile", compile_)
    plain = Stepper.__init__

    def init(stepper: Stepper, *given: Any) -> None:
        plain(stepper, *given)
        stepper.uses_graphs = True
        entered = stepper.enter_phase

        def set_phase(phase: Phase) -> None:
            captured_anew.append(stepper.state.step)
            entered(phase)

        monkeypatch.setattr(stepper, "set_phase", set_phase)

    monkeypatch.setattr(Stepper, "__init__", init)
    return found


@pytest.mark.parametrize("saved", [100.0, -1.0])
def test_the_decision_of_the_first_epoch_is_kept(
    saved: float,
    tiny: Tiny,
    compiles: list[int],
    captured_anew: list[int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(auto_compile, "seconds_saved", lambda *given: saved)
    runtime = Runtime(device="cpu", workers=1)
    recipe = tiny(epochs=3)
    train(recipe, folder=tmp_path, runtime=runtime, quiet=True)
    per_epoch = 3
    from_step = per_epoch if saved > 0 else None
    assert compiles == ([per_epoch] if saved > 0 else [])
    assert captured_anew == compiles
    environment = read_json(tmp_path / "environment.json")
    assert environment["compiled_from_step"] == from_step
    assert earlier_decision(tmp_path) == CompileDecision(True, from_step)


def test_a_full_disk_delays_the_decision(
    tiny: Tiny,
    compiles: list[int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    record, tries = RunFolder.record, []

    def full(run_folder: RunFolder, settings: dict[str, Any]) -> None:
        tries.append(settings)
        if len(tries) == 1:
            raise run_folder.unwritable(OSError(28, "No space left on device"))
        record(run_folder, settings)

    monkeypatch.setattr(RunFolder, "record", full)
    monkeypatch.setattr(auto_compile, "seconds_saved", lambda *given: 1.0)
    runtime = Runtime(device="cpu", workers=1)
    assert train(tiny(epochs=4), folder=tmp_path, runtime=runtime).finished
    assert compiles == [6]
    assert earlier_decision(tmp_path) == CompileDecision(True, 6)
    reported = " ".join(capsys.readouterr().out.split())
    assert "cannot be written (No space left on device)" in reported
    assert "could not be recorded once; now it works again." in reported


def test_no_checkpoint_is_written_beside_the_decision(
    tiny: Tiny, compiles: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several processes write and decide by collectives of one group."""
    writing = threading.Event()
    write = CheckpointWriter.write

    def write_slowly(*given: Any) -> None:
        writing.set()
        time.sleep(0.3)
        writing.clear()
        write(*given)

    def ask(one: Trainer, *_: Any) -> Requests:
        return Requests(save=one.state.step == 2)

    def decide(*_: Any) -> float:
        assert not writing.is_set()
        return 1.0

    monkeypatch.setattr(CheckpointWriter, "write", write_slowly)
    monkeypatch.setattr(Trainer, "own_requests", ask)
    monkeypatch.setattr(auto_compile, "seconds_saved", decide)
    runtime = Runtime(device="cpu", workers=1)
    train(tiny(epochs=4), folder=tmp_path, runtime=runtime, quiet=True)
    assert compiles == [3]


def test_short_epochs_are_decided_once_a_step_is_timed(
    tiny: Tiny, compiles: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU the first steps are a warm-up, which may be longer than an epoch."""
    monkeypatch.setattr(auto_compile, "seconds_saved", lambda *given: 1.0)
    monkeypatch.setattr(Clock, "skip_warmup", lambda clock: None)
    runtime = Runtime(device="cpu", workers=1)
    train(tiny(epochs=4), folder=tmp_path, runtime=runtime, quiet=True)
    assert compiles == [6]  # three steps an epoch, and three of warm-up


def test_decisions_before_the_first_step(
    tiny: Tiny, tmp_path: Path, cpu: Runtime
) -> None:
    assert first_decision(Runtime(), ALONE) == CompileDecision()
    assert first_decision(Runtime(compile="on"), ALONE) == CompileDecision(True, 0)
    assert first_decision(cpu, ALONE) == CompileDecision(True, None)
    assert earlier_decision(tmp_path) == CompileDecision()
    result = train(tiny(epochs=1), folder=tmp_path, runtime=cpu, quiet=True)
    assert result.summary["compiled_from_step"] is None
    assert earlier_decision(tmp_path) == CompileDecision(True, None)


def test_a_resumed_run_compiles_from_the_step_that_was_decided(
    tiny: Tiny,
    compiles: list[int],
    captured_anew: list[int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    interrupt_after: Callable[[int | None], None],
) -> None:
    monkeypatch.setattr(auto_compile, "seconds_saved", lambda *given: 1.0)
    runtime = Runtime(device="cpu", workers=1)
    interrupt_after(7)
    train(tiny(epochs=4), folder=tmp_path, runtime=runtime, quiet=True)
    interrupt_after(None)
    assert compiles == [3]
    monkeypatch.setattr(auto_compile, "seconds_saved", pytest.fail)
    result = train(tiny(epochs=4), folder=tmp_path, runtime=runtime, quiet=True)
    assert result.finished
    assert compiles == captured_anew == [3, 7]
    assert read_json(tmp_path / "environment.json")["compiled_from_step"] == 3
