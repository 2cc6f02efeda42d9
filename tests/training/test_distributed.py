"""Two real processes train what one does, in every way of spreading a model."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import training_workers
from safetensors.torch import load_file
from torch.distributed import HashStore
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from two_processes import environments

from t2t.config import differences
from t2t.data.sources import open_splits
from t2t.errors import LocalError, ReportedError, UserError
from t2t.training.checkpoint_files import checkpoints, is_intact
from t2t.training.distributed import (
    World,
    backend_for,
    find_device,
    init_distributed,
    parallelize,
)
from t2t.training.evaluation.evaluate_model import evaluate_model
from t2t.training.logging.metrics import read_rows
from t2t.training.recipe import OptimizerConfig, Recipe
from t2t.training.rendezvous import agree_on_prefix, rendezvous_store, report_error_once
from t2t.training.run_files import read_json
from t2t.training.runtime import Runtime, shared_settings
from t2t.training.train import train

Tiny = Callable[..., Recipe]
Start = Callable[..., BaseProcess]
# How a model can be spread over two processes: the last is over two machines of one.
WAYS = {
    "ddp": ("ddp", 2),
    "fsdp": ("fsdp", 2),
    "hybrid": ("hybrid", 2),
    "hybrid over machines": ("hybrid", 1),
}

TORCHRUN_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


@pytest.fixture(scope="module")
def recipe(tiny: Tiny) -> Recipe:
    """Mixing within pairs, so that a sample's partner is in its process; clipped."""
    return tiny(
        optimizer=OptimizerConfig(lr=5e-3, reference_batch_size=16, clip_norm=0.5)
    )


@pytest.fixture(scope="module")
def alone(recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the recipe trained by one process."""
    folder = tmp_path_factory.mktemp("alone") / "run"
    torch.set_num_threads(1)
    train(recipe, folder=folder, runtime=Runtime(device="cpu"), quiet=True)
    return folder


@pytest.fixture
def in_two(start: Start, cpu: Runtime) -> Callable[..., None]:
    """Runs a function of training_workers in two processes at once."""

    def run(
        name: str,
        recipe: Recipe,
        folder: Path,
        way: str,
        *arguments: object,
        killed: int | None = None,
        **settings: Any,
    ) -> None:
        parallelism, local_size = WAYS[way]
        runtime = replace(cpu, parallelism=parallelism, **settings)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        common = {
            "WORLD_SIZE": "2",
            "LOCAL_WORLD_SIZE": str(local_size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        workers = [
            start(
                name,
                recipe,
                folder,
                runtime,
                {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                *arguments,
            )
            for rank in (0, 1)
        ]
        for worker in workers:
            worker.join(100)
        codes = [-signal.SIGKILL if rank == killed else 0 for rank in (0, 1)]
        assert [worker.exitcode for worker in workers] == codes

    return run


@pytest.fixture
def train_in_two(in_two: Callable[..., None]) -> Callable[..., None]:
    """Trains in two processes at once; stops after some steps where asked to."""

    def run(
        recipe: Recipe,
        folder: Path,
        way: str = "ddp",
        stop_after: int | None = None,
        **settings: Any,
    ) -> None:
        in_two("train_together", recipe, folder, way, stop_after, **settings)

    return run


def scores(folder: Path) -> list[dict[str, Any]]:
    return [row for row in read_rows(folder / "metrics.jsonl") if "top1" in row]


def assert_same_run(found: Path, expected: Path) -> None:
    for ours, theirs in zip(scores(found), scores(expected), strict=True):
        assert ours["step"] == theirs["step"]
        assert ours["num_images"] == theirs["num_images"] == 13
        for key in ("val_loss", "val_loss_raw"):
            assert ours[key] == pytest.approx(theirs[key], abs=2e-3)
    ours, theirs = (load_file(f / "model.safetensors") for f in (found, expected))
    assert ours.keys() == theirs.keys()
    for name, weight in theirs.items():
        torch.testing.assert_close(ours[name], weight, rtol=0, atol=3e-3, msg=name)


@pytest.mark.parametrize("way", ["ddp", "fsdp", "hybrid over machines"])
def test_two_processes_train_what_one_does(
    way: str,
    recipe: Recipe,
    alone: Path,
    tmp_path: Path,
    train_in_two: Callable[..., None],
) -> None:
    folder = tmp_path / "run"
    train_in_two(recipe, folder, way, micro_batch=3)  # of the 8 images of each
    assert_same_run(folder, alone)
    losses = [read_rows(f / "metrics.jsonl")[-2]["loss"] for f in (folder, alone)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-4)
    assert json.loads((folder / "environment.json").read_text())["num_processes"] == 2
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    reported = [(row["step"], "top1" in row) for row in map(json.loads, lines)]
    assert len(reported) == len(set(reported))  # one process writes


@pytest.mark.parametrize(
    ("parallelism", "local_size"), [("ddp", 4), ("fsdp", 4), ("hybrid", 2)]
)
def test_four_processes_train_what_one_does(
    parallelism: Any,
    local_size: int,
    recipe: Recipe,
    alone: Path,
    cpu: Runtime,
    tmp_path: Path,
    start: Start,
) -> None:
    folder = tmp_path / "run"
    runtime = replace(cpu, parallelism=parallelism, micro_batch=3)  # of the 4 of each
    workers = []
    for rank, each in enumerate(environments(4)):
        each["LOCAL_WORLD_SIZE"] = str(local_size)
        each["LOCAL_RANK"] = str(rank % local_size)
        workers.append(start("train_together", recipe, folder, runtime, each, None))
    for worker in workers:
        worker.join(100)
    assert [worker.exitcode for worker in workers] == [0] * 4
    assert_same_run(folder, alone)
    losses = [read_rows(f / "metrics.jsonl")[-2]["loss"] for f in (folder, alone)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-4)


def test_blocks_that_are_sharded_one_by_one_train_what_one_process_does(
    recipe: Recipe, alone: Path, tmp_path: Path, in_two: Callable[..., None]
) -> None:
    in_two("train_by_blocks", recipe, tmp_path / "run", "fsdp", 5, micro_batch=3)
    # Resumed as if it were small: its shards are the same.
    in_two("train_together", recipe, tmp_path / "run", "fsdp", None)
    assert_same_run(tmp_path / "run", alone)


@pytest.mark.parametrize(
    ("way", "balance", "keep"),
    [("ddp", "sampling", "last"), ("fsdp", "weights", "last"), ("fsdp", None, "best")],
)
def test_two_processes_balance_choose_and_stop_as_one_does(
    way: str,
    balance: str | None,
    keep: str,
    uneven: Path,
    tiny: Tiny,
    cpu: Runtime,
    tmp_path: Path,
    train_in_two: Callable[..., None],
) -> None:
    recipe = tiny(
        task="test_peak",  # its third of eight evaluations is the best
        data=str(uneven),
        epochs=8,
        batch_size=8,
        evaluate_every=1,
        patience=2,
        balance=balance,
        keep=keep,
    )
    one, two = tmp_path / "one", tmp_path / "two"
    train(recipe, folder=one, runtime=cpu, quiet=True)
    # Stopped after the best evaluation, and resumed: it is in the checkpoint.
    train_in_two(recipe, two, way, stop_after=18)
    assert not (two / "result.json").exists()
    train_in_two(recipe, two, way)
    ours, theirs = (read_json(each / "result.json") for each in (two, one))
    for name in ("best_epoch", "best_score", "last_epoch", "stopped_early"):
        assert ours[name] == theirs[name]
    assert (ours["best_epoch"], ours["last_epoch"]) == (3, 5)
    names = {"model.safetensors"} | ({"best.safetensors"} if keep == "last" else set())
    for folder in (one, two):
        assert {path.name for path in folder.glob("*.safetensors")} == names
    for name in names:
        found, expected = (load_file(each / name) for each in (two, one))
        for key, weight in expected.items():
            torch.testing.assert_close(found[key], weight, rtol=0, atol=3e-3, msg=key)


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("test_two_views", "ddp"),
        ("test_two_views", "fsdp"),
        ("masked_autoencoder", "ddp"),
        ("masked_autoencoder", "fsdp"),
        ("masked_patches", "fsdp"),
    ],
)
def test_any_task_is_trained_by_two_processes(
    name: str,
    way: str,
    tiny: Callable[..., Recipe],
    cpu: Runtime,
    tmp_path: Path,
    train_in_two: Callable[..., None],
) -> None:
    recipe = tiny(task=name, epochs=2)
    folders = [tmp_path / each for each in ("one", "two")]
    train(recipe, folder=folders[0], runtime=cpu, quiet=True)
    # Stopped and resumed: the task's own modules are sharded, saved and restored too.
    train_in_two(recipe, folders[1], way, stop_after=2, micro_batch=4)
    train_in_two(recipe, folders[1], way, micro_batch=4)
    one, two = (read_rows(folder / "metrics.jsonl")[-1] for folder in folders)
    assert two["step"] == one["step"] == 6
    # Batch norms of the two views see the images of one process, in parts.
    close = 0.5 if name == "test_two_views" else 2e-3
    assert two["val_loss"] == pytest.approx(one["val_loss"], abs=close)


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("simclr", "ddp"),
        ("byol", "ddp"),
        ("moco_v3", "fsdp"),
        ("dino", "ddp"),
        ("dino", "fsdp"),
    ],
)
def test_views_are_compared_over_all_processes(
    name: str,
    way: str,
    tiny: Callable[..., Recipe],
    cpu: Runtime,
    tmp_path: Path,
    train_in_two: Callable[..., None],
) -> None:
    sizes = {"hidden_dim": 16, "output_dim": 8}
    others = {"num_prototypes": 12, "local_crops": 1} if name == "dino" else {}
    recipe = tiny(task=name, task_args=sizes | others, epochs=2)
    folders = [tmp_path / each for each in ("one", "two")]
    train(recipe, folder=folders[0], runtime=cpu, quiet=True)
    train_in_two(recipe, folders[1], way)
    one, two = (read_rows(folder / "metrics.jsonl") for folder in folders)
    for ours, theirs in zip(two, one, strict=True):
        # Padding, of which two processes have more, is among the negatives, and norms
        # in eval mode see the rounding of a bias that they subtract in training.
        limits = {"loss": 1e-3, "gradient_norm": 1e-3, "val_loss": 0.05}
        for key in limits.keys() & theirs.keys():
            assert ours[key] == pytest.approx(theirs[key], rel=limits[key]), key
    ours, theirs = (load_file(f / "model.safetensors") for f in reversed(folders))
    for key, weight in theirs.items():
        if key != "norm.bias":  # its gradient is nothing but rounding
            torch.testing.assert_close(ours[key], weight, rtol=0, atol=3e-3, msg=key)


def test_what_one_process_skips_is_named(
    recipe: Recipe, images: Path, tmp_path: Path, in_two: Callable[..., None]
) -> None:
    data, folder = tmp_path / "data", tmp_path / "run"
    shutil.copytree(images, data)
    (data / "val" / "c" / "8.png").write_text("the last, and so the second process's")
    in_two("train_on_shares", replace(recipe, data=str(data)), folder, "ddp")
    log = (folder / "log.txt").read_text().splitlines()
    reported = [line for line in log if "it is skipped" in line]
    assert len(reported) == 1
    assert reported[0].startswith(f"{data}/val/c/8.png: not an image that can be read")
    assert {row["num_images"] for row in scores(folder)} == {12}


@pytest.mark.parametrize("way", ["ddp", "fsdp"])
def test_batch_norms_count_alike_in_all_processes(
    way: str,
    recipe: Recipe,
    tmp_path: Path,
    train_in_two: Callable[..., None],
) -> None:
    recipe = replace(recipe, model="test_resnet", model_args={})
    recipe = replace(
        recipe, optimizer=OptimizerConfig(lr=1e-3, reference_batch_size=16)
    )
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train_in_two(recipe, whole, way)
    train_in_two(recipe, parts, way, stop_after=5)
    train_in_two(recipe, parts, way)
    ours, theirs = (load_file(f / "model.safetensors") for f in (whole, parts))
    for name, weight in ours.items():
        assert torch.equal(weight, theirs[name]), name
    # What all processes scored together is what one does with the leading one's.
    report = evaluate_model(whole, device="cpu")
    assert report is not None
    assert scores(whole)[-1]["val_loss"] == pytest.approx(report.score.loss, abs=1e-4)


@pytest.mark.parametrize("way", ["ddp", "hybrid"])
def test_two_processes_resume_as_one(
    way: str,
    recipe: Recipe,
    alone: Path,
    cpu: Runtime,
    tmp_path: Path,
    train_in_two: Callable[..., None],
) -> None:
    folder = tmp_path / "run"
    # The other process learns of a signal with the next step.
    train_in_two(recipe, folder, way, stop_after=5)
    assert [path.name for path in checkpoints(folder / "last")] == ["step-000000006"]
    assert train(recipe, folder=folder, runtime=cpu, quiet=True).finished
    assert_same_run(folder, alone)


@pytest.mark.parametrize("way", ["ddp", "fsdp"])
def test_one_process_resumes_as_two(
    way: str,
    recipe: Recipe,
    alone: Path,
    cpu: Runtime,
    tmp_path: Path,
    train_in_two: Callable[..., None],
    interrupt_after: Callable[[int | None], None],
) -> None:
    folder = tmp_path / "run"
    interrupt_after(5)
    assert not train(recipe, folder=folder, runtime=cpu, quiet=True).finished
    train_in_two(recipe, folder, way)
    assert_same_run(folder, alone)


def test_sharded_muon_trains_what_one_process_does(
    tiny: Tiny, cpu: Runtime, tmp_path: Path, train_in_two: Callable[..., None]
) -> None:
    recipe = tiny(
        optimizer=OptimizerConfig(name="muon", lr=2e-3, reference_batch_size=16),
        epochs=2,
    )
    train(recipe, folder=tmp_path / "alone", runtime=cpu, quiet=True)
    train_in_two(recipe, tmp_path / "run", "fsdp", stop_after=3)
    train_in_two(recipe, tmp_path / "run", "fsdp")
    assert_same_run(tmp_path / "run", tmp_path / "alone")


@pytest.mark.parametrize("num_images", [13, 1])
def test_two_processes_evaluate_as_one(
    num_images: int,
    recipe: Recipe,
    alone: Path,
    images: Path,
    tmp_path: Path,
    in_two: Callable[..., None],
) -> None:
    data = shutil.copytree(images / "val", tmp_path / "data")
    if num_images == 1:  # fewer than processes
        shutil.rmtree(data)
        (data / "a").mkdir(parents=True)
        shutil.copy(images / "val" / "a" / "0.png", data / "a")
    else:
        for name in ("a/+", "c/99"):  # the first one is looked at by both
            (data / f"{name}.png").write_bytes(b"nothing")
    options = {"data": data, "batch_size": 4}
    in_two("evaluate_together", recipe, alone, "ddp", (options, options), tmp_path)
    assert not (tmp_path / "report-1.json").exists()  # the first one tells it
    ours = json.loads((tmp_path / "report-0.json").read_text())
    progress: list[list[int]] = []
    report = evaluate_model(
        alone, device="cpu", progress=lambda *n: progress.append([*n]), **options
    )
    assert report is not None
    theirs = json.loads(json.dumps(report.as_json()))
    theirs |= {"guesses": report.score.predictions.tolist(), "progress": progress}
    assert (ours.pop("device"), theirs.pop("device")) == ("2 × cpu", "cpu")
    assert ours.pop("loss") == pytest.approx(theirs.pop("loss"), rel=1e-4)
    assert theirs["num_images"] == num_images
    assert len(theirs["damaged"]) == (2 if num_images == 13 else 0)
    for facts in (ours, theirs):
        del facts["images_per_second"]
        facts["damaged"].sort()
    assert ours == theirs


@pytest.mark.parametrize("differing", ["num_images: 13 → 12", "batch_size: 4 → 2"])
def test_two_processes_do_not_evaluate_different_images(
    differing: str,
    recipe: Recipe,
    alone: Path,
    images: Path,
    tmp_path: Path,
    in_two: Callable[..., None],
) -> None:
    options = {"data": images / "val", "batch_size": 4}
    other = {**options, "batch_size": 2}
    if differing.startswith("num_images"):
        other = {**options, "data": shutil.copytree(images / "val", tmp_path / "data")}
        (tmp_path / "data" / "a" / "0.png").unlink()
    in_two("evaluate_together", recipe, alone, "ddp", (options, other), tmp_path)
    assert not [*tmp_path.glob("report-*")]
    reported = [(tmp_path / f"reported-{rank}.txt").read_text() for rank in (0, 1)]
    assert reported[0].startswith("ReportedError")
    assert f"differs from process 0 ({differing}); give" in reported[1]


def test_shards_are_kept_where_the_model_has_no_room(
    recipe: Recipe, tmp_path: Path, in_two: Callable[..., None]
) -> None:
    folder = tmp_path / "run"
    # Those of the step before are still being written when the last one is done.
    given = (replace(recipe, epochs=1), folder, "fsdp")
    in_two("train_without_room", *given, checkpoint_minutes=0.0)
    for rank in (0, 1):
        reported = (tmp_path / f"reported-{rank}.txt").read_text()
        assert (
            "There is no room for the model. The checkpoint of step 3 of 3 " in reported
        )
    kept = [path.name for path in checkpoints(folder / "last")]
    assert kept == ["step-000000003", "step-000000002"]


def test_no_process_waits_for_one_that_cannot_write_its_shards(
    recipe: Recipe, tmp_path: Path, in_two: Callable[..., None]
) -> None:
    folder = tmp_path / "run"
    in_two("train_half_read_only", recipe, folder, "fsdp")
    assert (folder / "result.json").exists()
    reported = (folder / "log.txt").read_text()
    assert "step 6 could not be written ([Errno 30] Read-only file system)" in reported


@pytest.mark.parametrize(("way", "killed"), [("ddp", 0), ("ddp", 1), ("fsdp", 1)])
def test_a_process_that_is_killed_is_missed_by_the_other(
    way: str, killed: int, recipe: Recipe, tmp_path: Path, in_two: Callable[..., None]
) -> None:
    folder = tmp_path / "run"
    given = (recipe, folder, way, killed)
    in_two("train_until_killed", *given, killed=killed, checkpoint_minutes=0.0)
    reported = (tmp_path / f"reported-{1 - killed}.txt").read_text()
    assert reported.startswith("LocalError: Another process of this run was killed")
    assert is_intact(checkpoints(folder / "last")[0])
    assert "could not be written" not in (folder / "log.txt").read_text()


def test_shards_are_not_kept_where_some_do_not_see_them(
    recipe: Recipe, tmp_path: Path, in_two: Callable[..., None]
) -> None:
    in_two("train_apart", recipe, tmp_path / "run", "fsdp")
    for rank in (0, 1):
        reported = (tmp_path / f"reported-{rank}.txt").read_text()
        assert "Not all nodes see" in reported
    assert not (tmp_path / "run-0" / "last").exists()


def test_one_process_reports_that_its_recipe_is_another(
    recipe: Recipe, tmp_path: Path, in_two: Callable[..., None]
) -> None:
    in_two("train_otherwise", recipe, tmp_path / "run", "ddp")
    reported = [(tmp_path / f"reported-{rank}.txt").read_text() for rank in (0, 1)]
    assert reported[0] == "ReportedError: Another process failed and reported why."
    assert reported[1].startswith("LocalError: Process 1 on ")
    assert "differs from process 0 (seed: 0 → 1); give" in reported[1]
    assert not (tmp_path / "run").exists()


def test_all_are_to_train_the_same_on_as_many_images(
    tiny: Tiny, cpu: Runtime, images: Path
) -> None:
    recipe, splits = tiny(), open_splits(str(images))
    world = World(0, 4, torch.device("cpu"), local_size=2)
    plans = shared_settings(recipe, cpu, world, splits, fresh=False)
    elsewhere = replace(recipe, data="elsewhere")
    assert plans == shared_settings(elsewhere, cpu, world, splits, fresh=False)
    fewer = replace(splits, train=splits.val)
    runtime = replace(cpu, parallelism="hybrid")
    assert differences(
        plans, shared_settings(recipe, runtime, world, fewer, fresh=True)
    ) == [
        "data.num_images: 48 → 13",
        'parallelism: "ddp" → "hybrid"',
        "fresh: false → true",
        "per_node: null → 2",
    ]


def test_the_first_process_that_meets_a_mistake_reports_it() -> None:
    store = HashStore()

    def leave(error: BaseException) -> type[BaseException]:
        with pytest.raises(type(error)) as found, report_error_once(store):
            raise error
        return found.type

    assert leave(RuntimeError("The shapes do not match")) is RuntimeError
    assert leave(UserError("No.")) is LocalError
    assert leave(UserError("No.")) is ReportedError
    for words in ("The shapes do not match", "[gloo] Connection closed by peer"):
        with pytest.raises(ReportedError), report_error_once(store):
            raise RuntimeError(words)


@pytest.mark.parametrize(
    "words",
    [
        {"WORLD_SIZE": "2"},
        {"RANK": "1"},
        {"RANK": "0", "WORLD_SIZE": "two"},
        {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "here"},
        {"RANK": "2", "WORLD_SIZE": "2", "MASTER_ADDR": "here", "MASTER_PORT": "1"},
        {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "here", "MASTER_PORT": "x"},
        {"LOCAL_WORLD_SIZE": "0"},
    ],
)
def test_an_environment_that_is_no_process_is_reported(
    words: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in words.items():
        monkeypatch.setenv(name, value)
    reported = f"RANK={words.get('RANK', 'unset')}, .* start with torchrun, or unset"
    with pytest.raises(LocalError, match=reported), init_distributed("cpu"):
        pass


def test_a_port_that_is_taken_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        monkeypatch.setenv("MASTER_PORT", str(taken.getsockname()[1]))
        with pytest.raises(LocalError, match=r"in use\); give another MASTER_ADDR or"):
            rendezvous_store(0, 2)


def test_killed_worker_is_restarted_by_torchrun(
    start: Start, recipe: Recipe, cpu: Runtime, alone: Path, tmp_path: Path
) -> None:
    """The second process kills itself after step 8; both are started again."""
    folder = tmp_path / "run"
    config = LaunchConfig(  # what torchrun makes of its options
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=2,
        max_restarts=1,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        run_id="restarts",
        monitor_interval=0.1,
        start_method="forkserver",  # which `start` has set up
    )
    handlers = {each: signal.getsignal(each) for each in TORCHRUN_SIGNALS}
    try:
        elastic_launch(config, training_workers.train_after_a_kill)(
            recipe, folder, replace(cpu, parallelism="fsdp"), tmp_path
        )
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert [path.name for path in tmp_path.glob("restarts-*")] == ["restarts-1"]
    assert_same_run(folder, alone)


LEAVING = """
import atexit
from pathlib import Path
from t2t.training.distributed import init_distributed, barrier

def tell():
    print(*(path.read_text() for path in Path("/proc/self/task").glob("*/comm")))

def meet():
    with init_distributed("cpu") as world:
        barrier(world)
    known = [world]
    known.append(known)  # as models know themselves in many ways

atexit.register(tell)  # whose turn comes last
meet()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Linux names a process's threads")
def test_no_thread_of_a_group_is_left_to_pythons_end() -> None:
    """One that lets go of a tensor then aborts the process, seldom, under load."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", LEAVING],
            env={**os.environ, **meeting, "RANK": rank, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in ("0", "1")
    ]
    threads = [process.communicate(timeout=100)[0] for process in started]
    assert [process.returncode for process in started] == [0, 0]
    assert all("py" in names and "gloo" not in names for names in threads), threads


def test_gradients_are_summed_on_streams_of_high_priority(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the environment: torch warns of the timeout that its options hold."""
    name = "TORCH_NCCL_HIGH_PRIORITY"
    for given, used in (({}, "1"), ({name: "0"}, "0")):
        monkeypatch.setattr(os, "environ", given)
        assert backend_for(torch.device("cuda:0")) == {
            "backend": "nccl",
            "device_id": torch.device("cuda:0"),
        }
        assert os.environ == {name: used}


@pytest.mark.parametrize(("hang_minutes", "expected"), [(0, 30), (5, 30), (60, 70)])
def test_no_collective_gives_up_before_a_hanging_process_is_named(
    hang_minutes: float, expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those of the group for objects and files, which has a timeout of its own."""
    found = {}
    for name in ("init_process_group", "new_group"):
        plain = getattr(dist, name)

        def start(
            *args: Any, plain: Any = plain, name: str = name, **options: Any
        ) -> Any:
            found[name] = options["timeout"]
            return plain(*args, **options)

        monkeypatch.setattr(dist, name, start)
    with init_distributed("cpu", group_of_one=True, hang_minutes=hang_minutes):
        pass
    wanted = timedelta(minutes=expected)
    assert found == {"init_process_group": wanted, "new_group": wanted}


def test_processes_agree_on_a_name_that_no_earlier_attempt_had() -> None:
    store = HashStore()

    def attempt(world_size: int) -> str:
        with ThreadPoolExecutor(world_size) as pool:
            names = set(
                pool.map(
                    lambda rank: agree_on_prefix(store, rank, world_size, 20),
                    range(world_size),
                )
            )
        assert len(names) == 1
        return names.pop()

    assert len({attempt(world_size) for world_size in (3, 3, 2, 4)}) == 4
    with pytest.raises(UserError, match=r"Process 1 of 2 waited 0\.1 s"):
        agree_on_prefix(store, 1, 2, 0.1)


def test_a_device_is_called_as_it_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match="device='cuda' is not available"):
        find_device("cuda")


def test_unknown_ways_and_devices_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(0, 1, torch.device("cpu"))
    with pytest.raises(UserError, match="allowed: ddp, fsdp, hybrid"):
        parallelize(torch.nn.Linear(1, 1), "zero", world)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="is not available; there is: cpu"):
        find_device("tpu")
    with pytest.raises(UserError, match="device='cpu:x' is not available"):
        find_device("cpu:x")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert str(find_device(None)) == "cpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert [str(find_device(name, 1)) for name in (None, "cuda", "cuda:0", "cpu")] == [
        "cuda:1",
        "cuda:1",
        "cuda:0",
        "cpu",
    ]
    with pytest.raises(UserError, match=r"'cuda:2' .* there is: cuda:0, cuda:1, cpu"):
        find_device("cuda", 2)  # as torchrun starts one process more than there are


def test_cuda_is_looked_for_with_all_its_queues(monkeypatch):
    name = "CUDA_DEVICE_MAX_CONNECTIONS"
    monkeypatch.delenv(name, raising=False)
    find_device("cpu")
    assert os.environ[name] == "32"
    monkeypatch.setenv(name, "1")
    find_device("cpu")
    assert os.environ[name] == "1"


def test_one_process_of_a_machine_lists_the_files(
    recipe: Recipe, in_two: Callable[..., None], tmp_path: Path
) -> None:
    in_two("train_and_note_listing", recipe, tmp_path / "run", "ddp")
    assert [path.name for path in tmp_path.glob("listed-*")] == ["listed-0"]
