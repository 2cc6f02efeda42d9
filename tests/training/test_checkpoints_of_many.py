"""Steps go on in all processes while a checkpoint is written."""

import json
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
from two_processes import environments

from t2t.training.distributed import Parallelism
from t2t.training.recipe import Recipe
from t2t.training.runtime import Runtime

NUM_PROCESSES = 4
NUM_STEPS, SECONDS = 27, 10.0
"""A checkpoint is written once so many steps have started, or after this time."""


@pytest.mark.parametrize("parallelism", ["ddp", "fsdp"])
def test_no_process_waits_for_a_checkpoint(
    parallelism: Parallelism,
    start: Callable[..., BaseProcess],
    tiny: Callable[..., Recipe],
    cpu: Runtime,
    tmp_path: Path,
) -> None:
    """One is written after epoch 5 of 10: there are 15 steps before and 15 after."""
    recipe = replace(tiny(), epochs=10, evaluate_every=5)
    runtime = replace(cpu, parallelism=parallelism)
    folder = tmp_path / "run"
    workers = [
        start("train_while_writing", recipe, folder, runtime, each, NUM_STEPS, SECONDS)
        for each in environments(NUM_PROCESSES)
    ]
    for worker in workers:
        worker.join(100)
    assert [worker.exitcode for worker in workers] == [0] * NUM_PROCESSES
    noted = [
        json.loads((tmp_path / f"times-{rank}.json").read_text())
        for rank in range(NUM_PROCESSES)
    ]
    writers = [rank for rank, each in enumerate(noted) if each["written"]]
    assert writers == ([0] if parallelism == "ddp" else [*range(NUM_PROCESSES)])
    ((first, last),) = noted[0]["written"]
    for each in noted:
        after = each["steps"][15:]
        assert len(after) == 15
        assert sum(first < at < last for at in after) >= 10
    assert (folder / "result.json").exists()
