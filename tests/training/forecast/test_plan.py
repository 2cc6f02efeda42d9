"""Predictions follow their formulae, and a thousand processes can be rehearsed."""

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch.distributed as dist

from t2t.errors import UserError
from t2t.lab.rehearsal import rehearse
from t2t.training.forecast.plan import (
    GPUS,
    STEP_SECONDS,
    STEP_SHARE,
    plan,
    sent_bytes,
)
from t2t.training.recipe import EMA, OptimizerConfig, Phase, Recipe, TokenDropping
from t2t.training.state import build_model

Tiny = Callable[..., Recipe]
PUBLISHED = Recipe(name="t2t_vit_14", model="t2t_vit_14", epochs=310, batch_size=1024)


def test_one_gpu_by_hand() -> None:
    found = plan(PUBLISHED, 1)
    rate = STEP_SHARE * 790e12 / (6 * 4.8e9)
    assert found.compute_seconds == pytest.approx(1024 / rate)
    assert found.step_seconds == pytest.approx(1024 / rate + STEP_SECONDS)
    assert found.steps == 310 * 1251
    assert found.sent_bytes == 0
    # Weights, gradients, two moments and the average, four bytes each.
    assert found.state_gib == pytest.approx(20 * 21_465_806 / 2**30)
    scored = 310 * 50_000 * 2 / (3 * rate) / 3600
    assert found.evaluation_hours == pytest.approx(scored)
    training = found.steps * found.step_seconds / 3600
    assert found.hours == pytest.approx(training + scored)
    assert found.fits is None


def test_measured_rate_replaces_what_is_assumed() -> None:
    found = plan(PUBLISHED, 1, images_per_second=8000, gpu="A100")
    assert found.compute_seconds == pytest.approx(0.128)
    assert plan(PUBLISHED, 8, images_per_second=8000).compute_seconds == 0.016


def test_a_short_time_is_reported_in_words() -> None:
    short = replace(plan(PUBLISHED, 8), evaluation_hours=5.7e-6)
    assert dict(short.rows())["time"].endswith(" h, 0 s of it evaluation")


def test_steps_on_some_of_the_tokens_take_less() -> None:
    token_dropping = TokenDropping(keep=0.5, until=0.8)
    fewer = plan(replace(PUBLISHED, token_dropping=token_dropping), 1)
    whole = plan(PUBLISHED, 1)
    half = Phase(keep=0.5, light_augment=False).cost
    assert half < 1
    share = fewer.compute_seconds / whole.compute_seconds
    assert share == pytest.approx(0.8 * half + 0.2)
    assert fewer.evaluation_hours == whole.evaluation_hours


def test_memory_counts_the_images_computed_at_once() -> None:
    found = plan(PUBLISHED, 4, activation_bytes=2**30, gpu="H100")
    assert found.activations_gib == 256
    assert found.fits is False
    small = plan(PUBLISHED, 4, activation_bytes=2**30, gpu="H100", micro_batch=64)
    assert small.activations_gib == 64
    assert small.fits is True
    assert "too much: lower --micro-batch" in dict(found.rows())["memory per GPU"]
    huge = replace(found, state_gib=80.0)
    assert "too much: shard it" in dict(huge.rows())["memory per GPU"]
    assert (
        "64.0 GiB for activations; the GPU has 79 GiB"
        in dict(small.rows())["memory per GPU"]
    )
    bare = replace(PUBLISHED, ema=EMA(decay=0), optimizer=OptimizerConfig(name="sgd"))
    assert plan(bare, 4).state_gib == pytest.approx(12 * 21_465_806 / 2**30)


def test_sharding_divides_the_state_and_sends_more() -> None:
    whole = plan(PUBLISHED, 64)
    sharded = plan(PUBLISHED, 64, parallelism="fsdp")
    hybrid = plan(PUBLISHED, 64, parallelism="hybrid")
    assert sharded.state_gib == pytest.approx(whole.state_gib / 64)
    assert hybrid.state_gib == pytest.approx(whole.state_gib / 8)
    assert sharded.sent_bytes == pytest.approx(1.5 * whole.sent_bytes)
    assert hybrid.network_seconds < whole.network_seconds < sharded.network_seconds


def test_more_gpus_are_faster_and_less_efficient() -> None:
    plans = [plan(PUBLISHED, num) for num in (1, 8, 64, 512)]
    hours = [found.hours for found in plans]
    efficiencies = [found.efficiency for found in plans]
    assert hours == sorted(hours, reverse=True)
    assert efficiencies == sorted(efficiencies, reverse=True)
    assert {found.gpu for found in plans} <= GPUS.keys()
    assert plans[1].as_json()["images_per_second"] == plans[1].images_per_second


def test_what_cannot_be_planned_is_reported(tiny: Tiny) -> None:
    with pytest.raises(UserError, match="1024 cannot be divided over 3 GPUs"):
        plan(PUBLISHED, 3)
    with pytest.raises(UserError, match="gpu='TPU' is not known"):
        plan(PUBLISHED, 8, gpu="TPU")
    with pytest.raises(UserError, match="give its parameters and gmacs"):
        plan(tiny(), 1)
    assert plan(tiny(), 1, parameters=10**6, gmacs=0.1).hours > 0


@pytest.mark.parametrize("parallelism", ["ddp", "fsdp", "hybrid"])
def test_a_thousand_processes_are_rehearsed(parallelism: Any, tiny: Tiny) -> None:
    recipe = tiny(batch_size=2048)
    found = rehearse(recipe, 1024, num_classes=3, parallelism=parallelism)
    assert found.images == 2
    assert not dist.is_initialized()
    size = sum(p.numel() for p in build_model(recipe, 3).parameters())
    if parallelism == "ddp":
        (expected,) = filter(None, sent_bytes(size, 1024, 8, parallelism))
        assert found.sent_bytes == pytest.approx(expected, rel=1e-4)
    else:
        # Rows are padded to the number of shards; the outermost part is gathered once.
        assert found.sent_bytes > 0.7 * sum(sent_bytes(size, 1024, 8, parallelism))
        assert found.state_bytes < 4 * 4 * size / 4
    kinds = {
        "ddp": {"all-reduce"},
        "fsdp": {"all-gather", "reduce-scatter", "all-reduce"},
        "hybrid": {"all-gather", "reduce-scatter", "all-reduce"},
    }
    assert found.sent.keys() == kinds[parallelism]


def test_an_image_each_is_rehearsed_without_a_warning(tiny: Tiny) -> None:
    """Whose class token gets a gradient of other strides, which DDP would tell."""
    recipe = tiny(batch_size=1024)
    recipe = replace(
        recipe,
        model_args={**recipe.model_args, "class_token": True, "pool": "class"},
        augmentation=replace(recipe.augmentation, mix_group=None),
    )
    with warnings.catch_warnings(record=True) as reported:
        warnings.simplefilter("always")
        assert rehearse(recipe, 1024, num_classes=3).images == 1
    assert [str(each.message) for each in reported] == []


def test_rehearsal_sends_what_the_plan_says_where_nothing_is_padded(tiny: Tiny) -> None:
    """Over two machines of two, whose four shards divide nearly every row."""
    recipe = tiny()
    size = sum(p.numel() for p in build_model(recipe, 3).parameters())
    for parallelism in ("fsdp", "hybrid"):
        found = rehearse(
            recipe,
            4,
            num_classes=3,
            parallelism=parallelism,
            per_node=2,  # type: ignore[arg-type]
        )
        expected = sum(sent_bytes(size, 4, 2, parallelism))  # type: ignore[arg-type]
        # The outermost part stays gathered between forward and backward.
        assert 0.7 * expected < found.sent_bytes < 1.05 * expected


def test_hybrid_needs_machines_of_one_size(tiny: Tiny) -> None:
    odd = tiny(batch_size=24)
    for predict in (
        lambda: rehearse(odd, 12, parallelism="hybrid"),
        lambda: plan(replace(PUBLISHED, batch_size=12), 12, parallelism="hybrid"),
    ):
        with pytest.raises(UserError, match="12 processes are not a multiple of 8"):
            predict()
    assert rehearse(odd, 12, num_classes=3).images == 2
