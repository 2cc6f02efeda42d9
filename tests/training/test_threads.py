"""Threads: as many as cores are free, and the same number after a resume."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from t2t.data import resources
from t2t.models.checkpoint_io.checkpoints import read_checkpoint
from t2t.training import threads
from t2t.training.recipe import Recipe
from t2t.training.runtime import Runtime
from t2t.training.threads import choose_threads, use_free_cores, use_threads
from t2t.training.train import train

Tiny = Callable[..., Recipe]


@pytest.fixture(autouse=True)
def four_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Torch may use four, as on a machine of four cores, and nobody says otherwise."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


def free(monkeypatch: pytest.MonkeyPatch, cores: float) -> None:
    monkeypatch.setattr(threads, "free_cores", lambda: cores)


@pytest.mark.parametrize(
    ("cores", "number"), [(0.0, 1), (0.4, 1), (1.6, 2), (3.9, 4), (64.0, 4)]
)
def test_only_free_cores_compute(
    cores: float, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    free(monkeypatch, cores)
    assert choose_threads().number == number
    with use_free_cores(torch.device("cpu")):
        assert torch.get_num_threads() == number
    assert torch.get_num_threads() == 4
    with use_free_cores(torch.device("cuda")):
        assert torch.get_num_threads() == 4


def test_what_is_asked_for_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    free(monkeypatch, 1.0)
    assert str(choose_threads(3)) == "CPU threads: 3 (as requested)."
    assert str(choose_threads(None, 2)) == "CPU threads: 2 (as before the resume)."
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    assert str(choose_threads()) == "CPU threads: 4 (OMP_NUM_THREADS)."
    assert str(choose_threads(None, 4)) == "CPU threads: 4 (OMP_NUM_THREADS)."
    assert "started with 2, so results may differ in the last" in str(
        choose_threads(None, 2)
    )


def test_a_resumed_run_computes_with_as_many_threads(
    tiny: Tiny,
    cpu: Runtime,
    tmp_path: Path,
    interrupt_after: Callable[[int | None], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recipe = tiny(random=True, epochs=1)
    seen = []

    def watched(chosen: threads.Threads) -> object:
        seen.append(chosen.number)
        return use_threads(chosen)

    monkeypatch.setattr("t2t.training.train.use_threads", watched)
    free(monkeypatch, 2.0)
    whole = train(recipe, folder=tmp_path / "whole", runtime=cpu, quiet=True)
    interrupt_after(2)
    train(recipe, folder=tmp_path / "cut", runtime=cpu, quiet=True)
    reported = json.loads((tmp_path / "cut" / "environment.json").read_text())
    assert reported["threads"] == 2
    interrupt_after(None)
    free(monkeypatch, 4.0)
    cut = train(recipe, folder=tmp_path / "cut", runtime=cpu, quiet=True)
    assert seen == [2, 2, 2]
    assert torch.get_num_threads() == 4
    one, other = (
        read_checkpoint(each.folder / "model.safetensors").tensors
        for each in (whole, cut)
    )
    assert all(torch.equal(one[name], other[name]) for name in one)
    log = (tmp_path / "cut" / "log.txt").read_text()
    assert "CPU threads: 2 (2.0 of" in log
    assert "CPU threads: 2 (as before the resume)." in log
    again = train(
        recipe,
        folder=tmp_path / "cut",
        runtime=replace(cpu, threads=1),
        quiet=True,
        fresh=True,
    )
    assert again.finished
    assert seen[-1] == 1


def test_free_cores_are_those_that_were_idle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = tmp_path / "stat"
    monkeypatch.setattr(resources, "_TIMES", times)
    monkeypatch.setattr(resources, "_GROUPS", tmp_path / "none")
    monkeypatch.setattr(resources.os, "sched_getaffinity", lambda process: {0, 1, 2})
    monkeypatch.setattr(resources.os, "sysconf", lambda name: 100)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    now = [0.0]
    monkeypatch.setattr(resources.time, "monotonic", lambda: now[0])

    def rows(idle: tuple[int, ...]) -> str:
        each = [f"cpu{core} 9 9 9 {time} 0 0 0 0" for core, time in enumerate(idle)]
        return "\n".join(["cpu 1 1 1 1 1 1 1 1", *each, "intr 5"])

    def sleep(seconds: float) -> None:
        now[0] += 1.0
        times.write_text(rows((100, 50, 0, 100)))

    monkeypatch.setattr(resources.time, "sleep", sleep)
    times.write_text(rows((0, 0, 0, 0)))
    assert resources.free_cores() == 1.5  # the fourth core is others'
    times.unlink()
    monkeypatch.setattr(resources.time, "sleep", lambda seconds: None)
    now[0] = 0.0
    monkeypatch.setattr(resources.time, "monotonic", lambda: now.append(0) or len(now))
    assert resources.free_cores() == 3  # where the system does not tell
