"""Checkpoints: complete or not there, checked, and written in the background."""

import errno
import json
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint import state_dict_saver

from t2t.training import checkpoint_writer
from t2t.training.checkpoint_files import checkpoints, is_intact, newest_intact
from t2t.training.checkpoint_writer import CheckpointWriter
from t2t.training.distributed import World
from t2t.training.initial_state import new_state
from t2t.training.recipe import EMA, Recipe
from t2t.training.runtime import Runtime, resolve_runtime
from t2t.training.state import Snapshot, TrainState

Tiny = Callable[..., Recipe]
ALONE = World(0, 1, torch.device("cpu"))


@pytest.fixture
def saved(tiny: Tiny, cpu: Runtime, tmp_path: Path) -> tuple[TrainState, Path]:
    """A run with the checkpoints of its steps 1, 2 and 3, of which two are kept."""
    run = new_state(tiny(ema=EMA(decay=0)), resolve_runtime(cpu, ALONE), ALONE, 3)
    writer = CheckpointWriter(tmp_path, ALONE, pytest.fail)
    for step in (1, 2, 3):
        run.step = step
        writer.save(run.snapshot())
    writer.finish()
    return run, tmp_path


def test_two_checkpoints_are_kept(saved: tuple[TrainState, Path]) -> None:
    names = [path.name for path in checkpoints(saved[1])]
    assert names == ["step-000000003", "step-000000002"]
    assert all(is_intact(path) for path in checkpoints(saved[1]))


@pytest.mark.parametrize("harm", ["flip", "cut", "delete", "no manifest", "manifest"])
def test_damaged_checkpoint_gives_way_to_the_one_before(
    harm: str, saved: tuple[TrainState, Path]
) -> None:
    newest, before = checkpoints(saved[1])
    file = max(newest.iterdir(), key=lambda path: path.stat().st_size)
    content = bytearray(file.read_bytes())
    if harm == "flip":
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
    elif harm == "cut":
        file.write_bytes(content[:-1])
    elif harm == "delete":
        file.unlink()
    elif harm == "no manifest":
        (newest / "manifest.json").unlink()
    else:
        (newest / "manifest.json").write_text('{"a"')
    reported: list[str] = []
    assert newest_intact(saved[1], reported.append) == before
    assert len(reported) == 1
    assert "step-000000003 is damaged" in reported[0]
    assert checkpoints(saved[1]) == [before]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(28, "No space left on device"), "No space left on device"),
        (
            RuntimeError("[enforce fail at inline_container.cc:671] . unexpected pos"),
            r"\(about [\d,]+ bytes are needed and [\d,]+ are free\)",
        ),
    ],
)
def test_full_disk_leaves_the_last_checkpoint_and_is_reported(
    error: Exception,
    words: str,
    saved: tuple[TrainState, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run, folder = saved
    size = sum(tensor.nbytes for tensor in run.snapshot().tensors.values())
    usage = SimpleNamespace(free=int(1.5 * size) + 2**16)
    monkeypatch.setattr(checkpoint_writer.shutil, "disk_usage", lambda path: usage)

    def full(*_: object, **__: object) -> None:
        raise error

    reported: list[str] = []
    writer = CheckpointWriter(folder, ALONE, reported.append)
    run.step = 4
    with monkeypatch.context() as patch:
        patch.setattr("torch.distributed.checkpoint.filesystem._write_item", full)
        writer.save(run.snapshot())
        writer.finish()
    assert len(reported) == 1
    assert re.search(words, reported[0])
    assert "resume from step-000000003" in reported[0]
    assert sorted(path.name for path in folder.iterdir()) == [
        "step-000000002",
        "step-000000003",
    ]
    assert all(is_intact(path) for path in checkpoints(folder))
    writer.save(run.snapshot())
    writer.finish()
    assert newest_intact(folder, pytest.fail) == folder / "step-000000004"


@pytest.mark.parametrize("quota", [False, True])
def test_where_only_one_checkpoint_fits_the_older_gives_way(
    quota: bool, saved: tuple[TrainState, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, folder = saved
    plain = state_dict_saver.save
    size = sum(tensor.nbytes for tensor in run.snapshot().tensors.values())

    def usage(path: object) -> SimpleNamespace:
        older = size * (2 - len(checkpoints(folder)))
        return SimpleNamespace(free=10**12 if quota else size // 2 + older)

    def full(*arguments: Any, **options: Any) -> None:
        if len(checkpoints(folder)) == 2:
            number = errno.EDQUOT if quota else errno.ENOSPC
            raise OSError(number, os.strerror(number))
        plain(*arguments, **options)

    monkeypatch.setattr(state_dict_saver, "save", full)
    monkeypatch.setattr(checkpoint_writer.shutil, "disk_usage", usage)
    reported: list[str] = []
    writer = CheckpointWriter(folder, ALONE, reported.append)
    run.step = 4
    writer.save(run.snapshot())
    writer.finish()
    assert reported == [
        "The older checkpoint step-000000002 was removed to free disk space."
    ]
    names = [path.name for path in checkpoints(folder)]
    assert names == ["step-000000004", "step-000000003"]
    assert not writer.failed


def test_ctrl_c_while_a_checkpoint_is_written_waits_for_it(
    saved: tuple[TrainState, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, folder = saved
    plain = checkpoint_writer.seal

    def press_ctrl_c(folder: Path) -> None:
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.1)
        plain(folder)

    monkeypatch.setattr(checkpoint_writer, "seal", press_ctrl_c)
    run.step = 4

    def save() -> None:
        with CheckpointWriter(folder, ALONE, pytest.fail) as writer:
            writer.save(run.snapshot())
            writer.finish()

    with pytest.raises(KeyboardInterrupt):
        save()
    assert newest_intact(folder, pytest.fail) == folder / "step-000000004"


def test_what_a_killed_process_began_is_swept(saved: tuple[TrainState, Path]) -> None:
    draft = saved[1] / ".writing-000000009"
    draft.mkdir()
    (draft / "__0_0.distcp").write_bytes(b"half")
    with CheckpointWriter(saved[1], ALONE, pytest.fail):
        assert not draft.exists()


def test_numbers_are_read_exactly(saved: tuple[TrainState, Path]) -> None:
    run, folder = saved
    held = json.loads((checkpoints(folder)[0] / "numbers.json").read_text())
    assert held == json.loads(json.dumps(run.snapshot().numbers))


def test_checkpoints_that_fail_again_and_again_are_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    reported: list[str] = []
    with CheckpointWriter(tmp_path / "last", ALONE, reported.append) as writer:
        with monkeypatch.context() as patch:
            patch.setattr("torch.distributed.checkpoint.filesystem._write_item", full)
            for step in range(3):
                writer.save(Snapshot({"model/x": torch.zeros(2)}, {"step": step}))
            writer.finish()
        writer.save(Snapshot({"model/x": torch.zeros(2)}, {"step": 3}))
    assert len(checkpoints(tmp_path / "last")) == 1
    assert len(reported) == 2
    assert reported[0].startswith("The checkpoint of step 0 could not be written (")
    assert (
        reported[1] == "A checkpoint could not be written 3 times; now it works again."
    )
