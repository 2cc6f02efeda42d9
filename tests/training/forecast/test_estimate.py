"""What a run would take is judged by all of its phases."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from t2t.training.forecast import estimate as module
from t2t.training.forecast.estimate import estimate
from t2t.training.recipe import Recipe, TokenDropping
from t2t.training.runtime import Runtime
from t2t.training.state import TrainState

Tiny = Callable[..., Recipe]


def test_every_phase_counts_by_its_share(
    tiny: Tiny, cpu: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    def try_steps(run: TrainState, *_: object) -> tuple[float, float]:
        share: float = run.model.encoder.token_share
        return share, share * 2**30

    monkeypatch.setattr(module, "try_steps", try_steps)
    token_dropping = TokenDropping(keep=0.5, until=0.5)
    reported = estimate(tiny(token_dropping=token_dropping, epochs=100), cpu)
    # 4,800 images of a second each, half of them in half of it.
    assert "About 60 min 00 s on cpu" in reported
    assert "16 for the activations of 16 images" in reported


def test_a_slow_machine_reports_enough_by_two_steps(
    tiny: Tiny, cpu: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = itertools.count(step=80.0)  # a step of 8 images takes as long
    monkeypatch.setattr(module.time, "perf_counter", lambda: next(now))
    assert "on cpu at 0.1 images/s, estimated from" in estimate(tiny(), cpu)
    assert next(now) == 4 * 80.0


def test_no_more_images_are_held_than_a_batch_has(tiny: Tiny, cpu: Runtime) -> None:
    reported = [
        estimate(tiny(), replace(cpu, micro_batch=number)).splitlines()[-1]
        for number in (16, 1000)
    ]
    assert reported[0] == reported[1]
    assert "for the activations of 16 images" in reported[0]


def test_a_recipe_is_shown_without_its_data(
    tiny: Tiny,
    cpu: Runtime,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reported = estimate(tiny(data=str(tmp_path / "missing")), cpu)
    assert "epochs: 4" in reported
    assert (
        "Steps and time are unknown because the data cannot be opened: There"
        in reported
    )
    assert "images/s, estimated from" in reported
    monkeypatch.setenv("T2T_CACHE", str(tmp_path))
    reported = estimate(tiny(data="cifar10", channels=3), cpu)
    assert "Data set 'cifar10' is not downloaded" in reported
    assert not [*tmp_path.iterdir()]
