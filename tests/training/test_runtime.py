"""What a run does on its device by default."""

from pathlib import Path
from typing import Any

import pytest
import torch

from t2t.errors import UserError
from t2t.training.distributed import World
from t2t.training.runtime import (
    Runtime,
    captures_steps,
    default_precision,
    resolve_runtime,
)


@pytest.mark.parametrize(
    ("device", "capability", "precision"),
    [
        ("cpu", None, "fp32"),
        ("cuda", (7, 5), "fp16"),  # emulates bf16
        ("cuda", (8, 0), "bf16"),
        ("cuda", (9, 0), "bf16"),
    ],
)
def test_the_precision_is_one_that_the_device_computes_in(
    device: str,
    capability: tuple[int, int] | None,
    precision: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: capability)
    assert default_precision(torch.device(device)) == precision


@pytest.mark.parametrize(
    ("device", "size", "parallelism", "precision", "is_compiled", "expected"),
    [
        ("cpu", 1, "ddp", "fp32", False, False),
        ("cuda", 1, "ddp", "bf16", True, True),
        ("cuda", 1, "fsdp", "bf16", True, True),  # nothing is sharded
        ("cuda", 8, "ddp", "bf16", True, True),
        ("cuda", 8, "fsdp", "bf16", False, True),
        ("cuda", 8, "hybrid", "fp32", False, True),
        ("cuda", 8, "fsdp", "bf16", True, False),
        ("cuda", 8, "hybrid", "bf16", True, False),
        # The loss scale is read by the host.
        ("cuda", 1, "ddp", "fp16", False, False),
        ("cuda", 8, "fsdp", "fp16", False, False),
    ],
)
def test_which_steps_are_cuda_graphs(
    device: str,
    size: int,
    parallelism: Any,
    precision: Any,
    is_compiled: bool,
    expected: bool,
) -> None:
    runtime = Runtime(device=device, parallelism=parallelism, precision=precision)
    world = World(0, size, torch.device(device))
    assert captures_steps(runtime, world, is_compiled) is expected


def test_compiling_for_a_cpu_needs_a_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = World(0, 1, torch.device("cpu"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CXX", "g++")
    with pytest.raises(UserError, match=r"g\+\+ is not here: install it"):
        resolve_runtime(Runtime(compile="on"), alone)
    resolve_runtime(Runtime(compile="auto"), alone)
    compiler = tmp_path / "g++"
    compiler.touch(mode=0o755)
    resolve_runtime(Runtime(compile="on"), alone)
