"""What a run does on its device by default."""

from pathlib import Path

import pytest
import torch

from t2t.errors import UserError
from t2t.training.distributed import World
from t2t.training.runtime import Runtime, default_precision, resolve_runtime


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
