"""Kernels are compiled by threads, and nothing is launched meanwhile."""

import sys
import threading
from pathlib import Path

import pytest
import torch

from t2t.ops import gelu
from t2t.ops.availability import HAS_TRITON
from t2t.training.kernel_compiling import KernelCompiler, compile_in_parallel

pytestmark = pytest.mark.skipif(not HAS_TRITON, reason="Triton is not installed")
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def absent_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Triton compiles for a GPU that is not here, without its cache."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    kernel_cards = pytest.importorskip("kernel_cards")
    monkeypatch.setattr(
        "t2t.ops.kernels.launch.launch",
        lambda kernel: kernel,
    )
    card = kernel_cards.Card(90, 227 << 10, "a test's")
    monkeypatch.setattr(kernel_cards.AbsentGpu, "get_current_device", lambda gpu: 2000)
    with kernel_cards.compiling_for(card):
        yield
    sys.modules.pop("kernel_cards", None)


def launch_in_another_thread() -> None:
    """As a backward pass does."""
    inner = torch.empty(4, 16, 128, dtype=torch.bfloat16)
    thread = threading.Thread(target=gelu.fused_backward, args=(inner, inner))
    thread.start()
    thread.join()


@pytest.mark.usefixtures("absent_gpu")
def test_launches_are_submitted_from_any_thread_and_compiled(tmp_path: Path) -> None:
    with compile_in_parallel(True) as kernels:
        with kernels.collect():
            inner = torch.empty(4, 16, 128, dtype=torch.bfloat16)
            gelu.fused_forward(inner, torch.empty(128))
            gelu.fused_forward(inner, torch.empty(128))
            launch_in_another_thread()
        assert kernels.progress().endswith(" of 3")
        kernels.wait()
    compiled = {path.name for path in tmp_path.rglob("*.cubin")}
    names = ("gelu_forward", "gelu_backward", "sum_partials")
    assert compiled == {f"{name}.cubin" for name in names}


def test_where_nothing_is_needed_launches_are_left_alone() -> None:
    from triton.runtime.jit import JITFunction

    plain = JITFunction.run
    with compile_in_parallel(False) as kernels, kernels.collect():
        assert JITFunction.run is plain
    assert kernels.progress() == "0 of 0"
    KernelCompiler().wait()


@pytest.mark.parametrize(
    "part", ["AsyncCompileMode", "runtime._async_compile.active_mode"]
)
def test_a_triton_without_a_part_compiles_at_the_first_launch(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(f"triton.{part}")
    with compile_in_parallel(True) as kernels, kernels.collect():
        assert kernels.mode is None
    assert kernels.progress() == "0 of 0"
