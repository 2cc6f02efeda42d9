"""Kernels are compiled by threads, and nothing is launched meanwhile."""

import itertools
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from t2t.ops import gelu
from t2t.ops.availability import HAS_TRITON
from t2t.training import compile_server
from t2t.training.kernel_compiling import KernelCompiler, compile_in_parallel

pytestmark = pytest.mark.skipif(not HAS_TRITON, reason="Triton is not installed")
NUMBERS = itertools.count(2000)
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
    # Triton keeps compiled kernels by this number, also those of other tests.
    number = next(NUMBERS)
    monkeypatch.setattr(
        kernel_cards.AbsentGpu, "get_current_device", lambda gpu: number
    )
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


@pytest.mark.usefixtures("absent_gpu")
def test_a_server_compiles_into_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compile_server, "feeds_gpu", lambda _: True)
    monkeypatch.setattr(compile_server, "num_cores", lambda: 8)
    compile_server.start_compiling_early(None)
    (server,) = compile_server.SPARE
    assert server.launcher is not None
    process = server.launcher.process

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("compiled in this process")

    monkeypatch.setattr("triton.compiler.ASTSource.make_ir", fail)
    with compile_in_parallel(True) as kernels:
        with kernels.collect():
            gelu.fused_forward(
                torch.empty(4, 16, 128, dtype=torch.bfloat16), torch.empty(128)
            )
            launch_in_another_thread()
        kernels.mode.ignore_errors = False
        kernels.wait()
    compiled = {path.name for path in tmp_path.rglob("*.cubin")}
    names = ("gelu_forward", "gelu_backward", "sum_partials")
    assert compiled == {f"{name}.cubin" for name in names}
    assert not compile_server.SPARE
    assert process.returncode is not None


def add_one() -> None:
    """Has none of the variables of Triton's function."""


def unknown_kernel(module: str = "t2t.ops.kernels.gelu") -> Callable[[], object]:
    """A function with these variables, as Triton names them."""

    def missing() -> None:
        """A kernel that the module does not have."""

    missing.__module__ = module
    kernel = SimpleNamespace(fn=missing)
    src = SimpleNamespace(fn=kernel, signature={}, constants={}, attrs={})
    target, options = "a GPU", SimpleNamespace()
    return lambda: (src, target, options)


def test_a_server_that_has_ended_compiles_nothing() -> None:
    server = compile_server.CompileServer()
    assert not server.compile(add_one)
    assert server.launcher is not None
    server.launcher.process.kill()
    server.launcher.process.wait()
    assert not server.compile(unknown_kernel())
    server.close()
    assert not server.compile(unknown_kernel())


def test_a_kernel_that_the_server_does_not_know_fails_at_once() -> None:
    server = compile_server.CompileServer()
    assert not server.compile(unknown_kernel())
    assert server.launcher is not None
    assert server.launcher.process.poll() is None
    server.close()


def test_the_processes_of_a_server_inherit_the_hash_of_triton() -> None:
    """It takes longer than all else in a process whose kernel is in the cache."""
    from triton.runtime.cache import triton_key

    triton_key.cache_clear()
    compile_server.hash_triton()
    assert triton_key.cache_info().currsize == 1


def test_a_server_that_hangs_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_server, "SECONDS_PER_KERNEL", 0.1)
    server = compile_server.CompileServer()
    assert server.launcher is not None
    os.kill(server.launcher.process.pid, signal.SIGSTOP)
    assert not server.compile(unknown_kernel())
    monkeypatch.setattr(compile_server, "SECONDS_PER_KERNEL", 60.0)
    assert not server.compile(unknown_kernel())
    server.close()


def test_kernels_of_users_are_not_sent_to_the_server() -> None:
    """Their file may train when it is imported."""
    found = compile_server.request_of(unknown_kernel(__name__))
    assert found is None
    assert compile_server.request_of(lambda: None) is None
    assert compile_server.request_of(print) is None


def test_a_server_that_cannot_import_triton_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "triton.py").write_text("raise ImportError('not for this machine')")
    monkeypatch.syspath_prepend(tmp_path)
    server = compile_server.CompileServer()
    assert not server.compile(unknown_kernel())
    assert server.launcher is not None
    server.launcher.process.wait(60)
    server.close()
    assert capfd.readouterr() == ("", "")


def test_a_server_that_compiles_nothing_is_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = compile_server.CompileServer()
    monkeypatch.setattr(compile_server, "SPARE", [server])
    with compile_in_parallel(False):
        assert server.launcher is None


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
    part: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "t2t")
    monkeypatch.delattr(f"triton.{part}")
    with compile_in_parallel(True) as kernels, kernels.collect():
        assert kernels.mode is None
    assert kernels.progress() == "0 of 0"
    assert "compiled one by one, at their first launch: " in caplog.text
    assert part.split(".")[-1] in caplog.text
