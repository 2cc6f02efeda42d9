"""Where kernels run."""

import pytest
import torch
from torch._subclasses import FakeTensorMode

from t2t.ops import availability
from t2t.ops.availability import HAS_TRITON, runs_kernels, runs_matmul_kernels


@pytest.mark.parametrize(("kib", "runs"), [(64, False), (99, True), (227, True)])
def test_products_need_shared_memory(
    monkeypatch: pytest.MonkeyPatch, kib: int, runs: bool
) -> None:
    monkeypatch.setattr(availability, "shared_memory", lambda device: kib << 10)
    with FakeTensorMode():
        x = torch.empty(2, 3, dtype=torch.float16, device="cuda")
        assert runs_matmul_kernels(x, x.dtype) == (runs and HAS_TRITON)
        assert runs_kernels(x, x.dtype) == HAS_TRITON


def test_kernels_run_in_half_precision_on_a_gpu_only() -> None:
    half = torch.zeros(2, dtype=torch.float16)
    assert not runs_kernels(half, half.dtype)
    with FakeTensorMode():
        assert not runs_kernels(torch.empty(2, device="cuda"), torch.float32)


def test_compiled_code_asks_for_shared_memory_in_one_graph() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"

    def add(x: torch.Tensor) -> torch.Tensor:
        return x + availability.shared_memory(x.device)

    x = torch.zeros(1, device=device)
    compiled = torch.compile(add, fullgraph=True, backend="eager")
    assert torch.equal(compiled(x), add(x))


def test_shared_memory_is_a_constant_for_the_compiler() -> None:
    marked = torch.compiler.assume_constant_result(lambda device: 0)
    assert vars(marked) == vars(availability.shared_memory)
