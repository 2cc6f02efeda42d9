"""The time of steps, and the rates."""

import time

import pytest

from t2t.training.logging.clock import Clock


def test_where_nothing_is_compiled_every_step_counts() -> None:
    clock = Clock()
    clock.skip_warmup()
    clock.start()
    for _ in range(4):
        time.sleep(0.01)
        clock.step()
    clock.restart_warmup()
    clock.step()
    assert clock.row()["compile_seconds"] == 0
    assert clock.seconds > 0.04
    assert clock.steps_per_second < 125


def test_the_rate_of_first_steps_counts_those_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(time, "monotonic", iter([0.0, 2.0, 4.0]).__next__)
    clock = Clock()
    clock.load_state_dict({"compile_seconds": 60.0, "num_compiled": 30})
    for seconds in (62.0, 64.0):
        clock.step()
        assert clock.steps_per_second == 0.5
        assert clock.row() == {"train_seconds": 0, "compile_seconds": seconds}


def test_the_whole_time_ends_with_the_saved_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(time, "monotonic", iter([0.0, 3.0, 7.0]).__next__)
    clock = Clock()
    assert clock.wall_times()["total_seconds"] == 3.0
    clock.model_saved()
    assert clock.wall_times()["total_seconds"] == 7.0
