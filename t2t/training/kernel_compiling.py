"""Compiles Triton kernels in parallel, before a run needs them."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any
from unittest import mock

from t2t.data.resources import num_cores
from t2t.errors import first_line
from t2t.log_level import logger
from t2t.ops.availability import HAS_TRITON
from t2t.training.compile_server import (
    CompileServer,
    end_spare_server,
    take_server,
)

_ONE_BY_ONE = "Kernels are compiled one by one, at their first launch: %s."
MAX_THREADS = 8
"""More would mostly wait for Python's lock."""


class KernelCompiler:
    """Kernels that are compiled by threads while the run goes on.

    Triton compiles a kernel at its first launch, one after the other. Within
    `collect`, launches only submit their kernels; the device runs none of them.
    """

    def __init__(self, mode: Any = None) -> None:
        self.mode = mode

    def progress(self) -> str:
        """How many kernels are compiled, of how many."""
        futures = [] if self.mode is None else self.mode.raw_futures
        return f"{sum(each.done() for each in futures)} of {len(futures)}"

    @contextmanager
    def collect(self) -> Iterator[None]:
        """Submits the kernels of all launches, and skips the launches."""
        if self.mode is None:
            yield
            return
        from triton.runtime import _async_compile
        from triton.runtime.jit import JITFunction

        launch, mode = JITFunction.run, self.mode

        def submit(kernel: Any, *arguments: Any, **options: Any) -> Any:
            # Backward passes launch from threads of torch's, each with its own context.
            _async_compile.active_mode.set(mode)
            try:
                return launch(kernel, *arguments, **{**options, "warmup": True})
            finally:
                _async_compile.active_mode.set(None)

        with mock.patch.object(JITFunction, "run", submit):
            yield

    def wait(self) -> None:
        """Waits until all are compiled; an error is raised where its kernel is used."""
        if self.mode is not None:
            self.mode.__exit__(None, None, None)


class CompilingThreads(ThreadPoolExecutor):
    """Threads that compile a kernel, and the C function that launches it.

    With a server they mostly wait for it.
    """

    def __init__(self, server: CompileServer | None) -> None:
        self.server = server
        most = MAX_THREADS if server is None else num_cores()
        super().__init__(min(num_cores(), most), "t2t-compile")

    def submit(  # type: ignore[override]
        self, compile_kernel: Callable[[], Any]
    ) -> "Future[Any]":
        return super().submit(self.compile_with_launcher, compile_kernel)

    def compile_with_launcher(self, compile_kernel: Callable[[], Any]) -> Any:
        """The kernel; its launcher is left in Triton's cache for the first launch."""
        from triton.runtime import driver

        if self.server is not None:
            self.server.compile(compile_kernel)
        # From the cache, if the server has compiled it.
        kernel = compile_kernel()
        with suppress(Exception):  # then the first launch compiles it
            driver.active.launcher_cls(kernel.src, kernel.metadata)
        return kernel


@contextmanager
def compile_in_parallel(is_needed: bool) -> Iterator[KernelCompiler]:
    """A compiler with a thread per core; does nothing unless it is needed."""
    mode = async_compile_mode() if is_needed and HAS_TRITON else None
    if mode is None:
        end_spare_server()
        yield KernelCompiler()
        return
    with early_server() as server, CompilingThreads(server) as executor:
        compiler = KernelCompiler(mode(executor, ignore_errors=True))
        try:
            yield compiler
            compiler.wait()
        except BaseException:  # Ctrl-C too
            executor.shutdown(wait=False, cancel_futures=True)
            raise


@contextmanager
def early_server() -> Iterator[CompileServer | None]:
    """The server that was started before PyTorch was imported; ends it afterwards."""
    server = take_server()
    try:
        yield server
    finally:
        if server is not None:
            server.close()


def async_compile_mode() -> Any:
    """Triton's class for compiling by threads; None if this Triton lacks a part of it.

    Two of its parts are private. Without them each kernel is compiled at its first
    launch: the start takes longer, and nothing else changes.
    """
    try:
        from triton import AsyncCompileMode
        from triton.runtime import _async_compile
        from triton.runtime.jit import JITFunction
    except ImportError as error:
        logger.debug(_ONE_BY_ONE, first_line(error))
        return None
    for part, name in ((_async_compile, "active_mode"), (JITFunction, "run")):
        if not hasattr(part, name):
            logger.debug(_ONE_BY_ONE, f"Triton has no {name}")
            return None
    return AsyncCompileMode
