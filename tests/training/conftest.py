"""Tiny runs, and processes that train."""

import multiprocessing
import multiprocessing.forkserver
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from t2t.training.recipe import Recipe
from t2t.training.runtime import Runtime
from t2t.training.train import train

# Tests, and the processes that they start, import modules beside this file.
sys.path.insert(0, str(Path(__file__).parent))

from tiny_runs import *  # noqa: F403

# What runs import is imported once, by the server that all processes are forks of.
PRELOADED = ["training_workers", "timm.models"]
PRELOADED += ["torch.distributed.fsdp", "frozen_imports"]


@pytest.fixture(scope="session")
def start() -> Callable[..., multiprocessing.process.BaseProcess]:
    """Starts a function of training_workers in a process of its own, within a blink."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        patch.setenv("OMP_NUM_THREADS", "1")
        multiprocessing.forkserver.ensure_running()

    def start(name: str, *arguments: Any) -> multiprocessing.process.BaseProcess:
        import training_workers

        process = context.Process(
            target=getattr(training_workers, name), args=arguments, daemon=True
        )
        process.start()
        return process

    return start


@pytest.fixture
def eager(cpu: Runtime) -> Runtime:
    """Writes a checkpoint after every step."""
    return replace(cpu, checkpoint_minutes=0.0)


@pytest.fixture(scope="session")
def recipe(tiny: Callable[..., Recipe]) -> Recipe:
    return tiny(random=True)


@pytest.fixture(scope="session")
def uninterrupted(recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that nothing happened to."""
    folder = tmp_path_factory.mktemp("expected") / "run"
    torch.set_num_threads(1)
    train(recipe, folder=folder, runtime=Runtime(device="cpu"), quiet=True)
    return folder


@pytest.fixture(scope="session")
def expected(uninterrupted: Path) -> dict[str, torch.Tensor]:
    """What the recipe comes to when nothing happens to it."""
    return load_file(uninterrupted / "model.safetensors")
