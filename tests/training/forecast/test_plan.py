"""Predictions follow their formulae, and a thousand processes can be rehearsed."""

import json
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from t2t.errors import UserError
from t2t.lab.rehearsal import rehearse
from t2t.training.forecast.measured_steps import (
    FLOOR_SECONDS,
    MeasuredSteps,
    measured_steps,
)
from t2t.training.forecast.plan import plan, sent_bytes
from t2t.training.forecast.step_times import GPUS, HOST_SECONDS, STEP_SHARE
from t2t.training.initial_state import build_model
from t2t.training.recipe import EMA, OptimizerConfig, Phase, Recipe, TokenDropping

Tiny = Callable[..., Recipe]
PUBLISHED = Recipe(name="t2t_vit_14", model="t2t_vit_14", epochs=310, batch_size=1024)


def test_one_gpu_by_hand() -> None:
    found = plan(PUBLISHED, 1)
    rate = STEP_SHARE * 790e12 / (6 * 4.8e9)
    assert found.device_seconds == pytest.approx(FLOOR_SECONDS + 1024 / rate)
    assert found.step_seconds == found.device_seconds
    assert found.steps == 310 * 1251
    assert found.sent_bytes == 0
    # Weights, gradients, two moments and the average, four bytes each.
    assert found.state_gib == pytest.approx(20 * 21_465_806 / 2**30)
    at_256 = 256 / (FLOOR_SECONDS + 256 / rate)
    scored = 310 * 50_000 * 2 / (3 * at_256) / 3600
    assert found.evaluation_hours == pytest.approx(scored)
    training = found.steps * found.step_seconds / 3600
    assert found.hours == pytest.approx(training + scored)
    assert found.fits is None


def test_measured_rate_replaces_what_is_assumed() -> None:
    found = plan(PUBLISHED, 1, images_per_second=8000, gpu="A100")
    assert found.device_seconds == pytest.approx(0.128)
    assert found.origins["device"].is_measured
    assert plan(PUBLISHED, 8, images_per_second=8000).device_seconds == 0.016


def test_a_step_takes_what_takes_longest() -> None:
    """Host, device and network run beside each other."""
    small = plan(
        replace(PUBLISHED, batch_size=8), 8, parallelism="fsdp", images_per_second=8000
    )
    assert small.device_seconds < HOST_SECONDS == small.step_seconds
    assert small.limit == "host"
    assert "limited by the host" in dict(small.rows())["steps"]
    captured = plan(replace(PUBLISHED, batch_size=512), 8)
    assert captured.exposed_seconds == 0
    assert captured.step_seconds == captured.device_seconds > HOST_SECONDS
    slow = replace(captured, network_seconds=0.1, exposed_seconds=0.09)
    assert slow.limit == "network"
    assert slow.step_seconds == pytest.approx(captured.device_seconds + 0.09)


def test_the_part_of_the_network_beside_which_nothing_is_computed() -> None:
    """2 (1 − 1/16) 4 P bytes at 40 GB/s, beside two thirds of the compute."""
    found = plan(replace(PUBLISHED, batch_size=16), 16)
    network = 2 * (15 / 16) * 4 * 21_465_806 / 40e9
    assert found.network_seconds == pytest.approx(network)
    exposed = network - 2 / 3 * found.device_seconds
    assert found.exposed_seconds == pytest.approx(exposed)
    assert 0 < exposed < network


def bench_row(batch: int, rate: float, **changes: Any) -> dict[str, Any]:
    usual = {
        "model": "t2t_vit_14",
        "mode": "train",
        "image_size": 224,
        "batch": batch,
        "precision": "bf16",
        "source": "synthetic",
        "launch": "eager_graph",
        "images_per_second": rate,
        "gpu": "NVIDIA H200",
    }
    return {**usual, **changes}


Read = Callable[..., MeasuredSteps]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Reads rows from a file, for the published recipe on H200."""

    def write_and_read(
        *rows: dict[str, Any],
        parallelism: Any = "ddp",
        num_gpus: int = 8,
        recipe: Recipe = PUBLISHED,
    ) -> MeasuredSteps:
        path = tmp_path / "rows.json"
        path.write_text(json.dumps(rows))
        return measured_steps(path, recipe, "H200", parallelism, num_gpus)

    return write_and_read


def test_small_batches_take_their_measured_time(read: Read) -> None:
    """Not a quarter of four times the images."""
    found = read(bench_row(64, 8000), bench_row(256, 10_000), bench_row(32, 6400))
    times = [found.device_seconds(batch) for batch in (32, 64, 160, 256, 512)]
    assert times == pytest.approx([0.005, 0.008, 0.0168, 0.0256, 0.0512])
    # Below the smallest, the line through 5 and 8 ms reaches 2 ms without images.
    assert found.device_seconds(16) == pytest.approx(0.0035)
    assert read(bench_row(64, 8000)).device_seconds(32) == pytest.approx(
        FLOOR_SECONDS + (0.008 - FLOOR_SECONDS) / 2
    )
    predicted = plan(replace(PUBLISHED, batch_size=512), 8, measured=found)
    assert predicted.step_seconds == pytest.approx(0.008)
    assert predicted.device_seconds > predicted.images_per_gpu / 10_000


def test_the_output_says_what_was_measured(read: Read) -> None:
    found = plan(PUBLISHED, 8, measured=read(bench_row(64, 8000)))  # 128 each
    rows = dict(found.rows())
    assert rows["device per step"] == "16.0 ms (extrapolated from measurements)"
    assert rows["host per step"] == "2.0 ms (assumed)"
    known, assumed = found.sources()
    assert known.startswith("Measured: device (")
    assert "rows.json, one process, extrapolated from batch 64, without" in known
    assert assumed.startswith("Assumed: host (")
    assert "network (360 GB/s within a node)" in assumed
    json_form = found.as_json()
    assert json_form["origins"]["device"]["is_measured"] is True
    assert json_form["origins"]["network"]["is_measured"] is False
    assert json_form["step_seconds"] == found.step_seconds
    (only,) = plan(PUBLISHED, 8).sources()
    assert only.startswith("Assumed: host (")
    assert "network" not in plan(PUBLISHED, 1).sources()[0]


def test_rows_of_a_group_of_one_go_first(read: Read) -> None:
    rows = [
        bench_row(64, 8000, host_ms=0.9, device_ms=7.9),
        bench_row(64, 7900, path="ddp", host_ms=1.4, device_ms=8.0),
        bench_row(64, 1000, path="ddp", host_ms=50.0, launch="eager"),
        bench_row(64, 1600, path="fsdp", host_ms=39.0, launch="eager"),
        bench_row(64, 7100, path="fsdp", host_ms=1.1, device_ms=8.9),
    ]
    ddp = read(*rows)
    assert (ddp.path, ddp.host_seconds(64)) == ("ddp", 0.0014)
    assert ddp.device_seconds(64) == pytest.approx(64 / 7900)
    assert read(*rows, num_gpus=1).path == "single"
    for parallelism in ("fsdp", "hybrid"):
        sharded = read(*rows, parallelism=parallelism)
        assert sharded.path == "fsdp"
        assert sharded.device_seconds(64) == pytest.approx(64 / 7100)
        recipe = replace(PUBLISHED, batch_size=512)
        found = plan(recipe, 8, parallelism=parallelism, measured=sharded)
        assert found.host_seconds == pytest.approx(0.0011)
        assert found.step_seconds >= found.device_seconds > found.host_seconds
        assert found.origins["host"].is_measured
    # Without others, a process launches a graph too.
    single = read(rows[0], parallelism="fsdp")
    assert (single.path, single.host_seconds(64)) == ("single", 0.0009)
    with pytest.raises(UserError, match="has no training steps"):
        read(rows[3], parallelism="fsdp")


def test_only_rows_of_that_step_are_taken(read: Read) -> None:
    right = bench_row(256, 10_000)
    others = [
        bench_row(256, 99_000, gpu="NVIDIA A100"),
        bench_row(256, 99_000, image_size=96),
        bench_row(256, 99_000, depth=4),
        bench_row(256, 99_000, mode="infer"),
        bench_row(256, 99_000, source="jpeg"),
        bench_row(256, 99_000, precision="fp32"),
        bench_row(256, 99_000, model="deit_small"),
        bench_row(256, 99_000, launch="eager"),
        bench_row(256, 99_000, recipe="other", phases=[]),
        bench_row(512, None),  # type: ignore[arg-type]
    ]
    found = read(*others, right)
    assert (found.batches, found.seconds) == ((256,), (0.0256,))
    with pytest.raises(UserError, match="no training steps of t2t_vit_14 at 224 px"):
        read(*others)
    changed = replace(PUBLISHED, model_args={"depth": 2})
    with pytest.raises(UserError, match="or leave --measured out"):
        read(right, recipe=changed)
    assert read(bench_row(256, 9000, recipe="t2t_vit_14"), recipe=changed).is_trainer


def test_a_measured_run_includes_its_token_dropping(read: Read) -> None:
    dropping = replace(PUBLISHED, token_dropping=TokenDropping(keep=0.5, until=0.8))
    step = plan(dropping, 1, measured=read(bench_row(1024, 8000), num_gpus=1))
    assert step.device_seconds == pytest.approx(0.128 * dropping.cost())
    whole = read(bench_row(1024, 8000, recipe="t2t_vit_14", phases=[]), num_gpus=1)
    assert plan(dropping, 1, measured=whole).device_seconds == pytest.approx(0.128)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "cannot be read"),
        ("{", "cannot be read"),
        ("[1, 2]", "holds no rows"),
        ("[]", "holds no rows"),
        ("", "holds no rows"),
    ],
)
def test_a_file_without_rows_is_reported(
    tmp_path: Path, text: str | None, words: str
) -> None:
    path = tmp_path / "rows.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UserError, match=f"{words}.*t2t bench --out") as caught:
        measured_steps(path, PUBLISHED, "H200", "ddp", 8)
    assert str(caught.value).count(". ") == 0


def test_rows_one_per_line_are_read(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    bare = {"model": "t2t_vit_14", "batch": 64, "gpu": "NVIDIA H200"}
    rows = [{**bare, "images_per_second": 8000, "launch": "graph"}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows * 2))
    assert measured_steps(path, PUBLISHED, "H200", "ddp", 8).seconds == (0.008,)


def test_a_short_time_is_reported_in_words() -> None:
    short = replace(plan(PUBLISHED, 8), evaluation_hours=5.7e-6)
    assert dict(short.rows())["time"].startswith("1.5 h, 0 s of it evaluation")


def test_steps_on_some_of_the_tokens_take_less() -> None:
    token_dropping = TokenDropping(keep=0.5, until=0.8)
    fewer = plan(replace(PUBLISHED, token_dropping=token_dropping), 1)
    whole = plan(PUBLISHED, 1)
    half = Phase(keep=0.5, light_augment=False).cost
    assert half < 1
    images = [each.device_seconds - FLOOR_SECONDS for each in (fewer, whole)]
    share = images[0] / images[1]
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
    assert sharded.sent_bytes == pytest.approx(whole.sent_bytes)  # gathered once
    assert hybrid.network_seconds < whole.network_seconds
    assert whole.exposed_seconds < sharded.exposed_seconds
    large = {"parameters": 300_000_000, "gmacs": 60.0}
    whole = plan(PUBLISHED, 64, **large)
    sharded = plan(PUBLISHED, 64, parallelism="fsdp", **large)
    assert sharded.sent_bytes == pytest.approx(1.5 * whole.sent_bytes)
    assert whole.network_seconds < sharded.network_seconds


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


def test_a_newcomer_reads_what_is_known(read: Read) -> None:
    alone, eight = dict(plan(PUBLISHED, 1).rows()), dict(plan(PUBLISHED, 8).rows())
    assert "network per step" not in alone
    assert "MiB sent per GPU, beside compute" in eight["network per step"]
    assert eight["time"].endswith("(computed from assumed figures)")
    assert eight["GPUs compute"].endswith("% of the time of training steps")
    many = replace(PUBLISHED, batch_size=4096)
    far = plan(many, 1024, measured=read(bench_row(64, 8000)))
    assert "GPUs wait" in dict(far.rows())["network per step"]
    assert "(extrapolated from measurements)" in dict(far.rows())["device per step"]
    with pytest.raises(UserError, match="add --set batch_size=1200 or another"):
        plan(PUBLISHED, 1200)
