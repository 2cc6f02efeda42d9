"""A process that compiles Triton kernels, each in a process that it forks.

Most of compiling is Python: threads of the training process would take turns with it.
This one imports no PyTorch, so it is ready early, and leaves what it has compiled in
Triton's cache. All of it may fail: then the training process compiles by itself.
"""

import atexit
import importlib
import os
import pickle
import select
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from inspect import getclosurevars
from pathlib import Path
from typing import Any, NamedTuple

from t2t.data.resources import num_cores
from t2t.data.streaming.launcher import (
    Launcher,
    end_launcher,
    feeds_gpu,
    start_launcher,
)
from t2t.torchrun import env_count

MIN_CORES = 8
"""With fewer, the training process would import more slowly."""
SECONDS_PER_KERNEL = 120.0
CHECK_EVERY = 1.0
KERNELS = Path(__file__).parents[1] / "ops" / "kernels"
PACKAGE = "t2t.ops.kernels."
DONE = b"."
SPARE: list["CompileServer"] = []


class Request(NamedTuple):
    """A kernel to compile: what Triton's compiler is called with."""

    module: str
    name: str
    signature: dict[str, str]
    constants: dict[Any, Any]
    attributes: dict[Any, Any]
    target: Any
    options: dict[str, Any]


def request_of(compile_kernel: Callable[[], Any]) -> Request | None:
    """What a function of Triton's compiles; None if the server cannot compile that.

    Kernels of users may be in files that would run again when they are imported.
    """
    try:
        found = getclosurevars(compile_kernel).nonlocals
        source, target, options = (found[key] for key in ("src", "target", "options"))
        kernel = source.fn.fn
        request = Request(
            kernel.__module__,
            kernel.__name__,
            source.signature,
            source.constants,
            source.attrs,
            target,
            vars(options),
        )
    except Exception:  # another Triton's, which has other variables
        return None
    return request if request.module.startswith(PACKAGE) else None


class CompileServer:
    """The process, as the training process sees it; any thread may call it."""

    def __init__(self) -> None:
        self.launcher: Launcher | None = start_launcher(__name__)
        self.hangs = False
        """Whether it has not answered in time: it is not asked again."""

    def compile(self, compile_kernel: Callable[[], Any]) -> bool:
        """Compiles a kernel into Triton's cache; whether that succeeded."""
        request = request_of(compile_kernel)
        if request is None or self.launcher is None or self.hangs:
            return False
        try:
            message = pickle.dumps(request)
            ours, theirs = socket.socketpair()
            with ours:
                with theirs:
                    socket.send_fds(self.launcher.connection, [DONE], [theirs.fileno()])
                ours.settimeout(SECONDS_PER_KERNEL)
                ours.sendall(message)
                ours.shutdown(socket.SHUT_WR)
                return ours.recv(1) == DONE
        except TimeoutError:
            self.hangs = True
            return False
        except Exception:  # what cannot be pickled raises many kinds
            return False

    def close(self) -> None:
        """Ends the process."""
        if self.launcher is not None:
            end_launcher(self.launcher)
            self.launcher = None


def start_compiling_early(device: str | None) -> None:
    """Starts the process for a run on a GPU, before it imports PyTorch."""
    if feeds_gpu(device) and num_cores() >= MIN_CORES and env_count("WORLD_SIZE") == 1:
        with suppress(OSError):
            SPARE.append(CompileServer())


def take_server() -> CompileServer | None:
    """The one that was started early."""
    return SPARE.pop() if SPARE else None


@atexit.register
def end_spare_server() -> None:
    """Ends one that nothing has used."""
    while SPARE:
        SPARE.pop().close()


def main(parent: int, file: int) -> None:
    """Forks a process for each kernel, until the training process closes its end."""
    be_silent()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # none is waited for
    for path in KERNELS.glob("*.py"):
        if path.stem not in ("__init__", "launch"):  # which imports PyTorch
            importlib.import_module(PACKAGE + path.stem)
    hash_triton()
    with socket.socket(fileno=file) as connection, suppress(Exception):
        while True:
            # Another process may have inherited the other end.
            while not select.select([connection], [], [], CHECK_EVERY)[0]:
                if os.getppid() != parent:
                    return
            word, files, *_ = socket.recv_fds(connection, 1, 1)
            if not word:
                return
            if os.fork() == 0:
                try:
                    connection.close()
                    serve(files[0])
                finally:
                    os._exit(0)
            os.close(files[0])


def hash_triton() -> None:
    """Hashes Triton's files, as its cache needs, once and not in each process."""
    with suppress(ImportError, AttributeError):
        importlib.import_module("triton.runtime.cache").triton_key()


def be_silent() -> None:
    """The training process compiles what fails here, and explains the error."""
    with open(os.devnull, "wb") as nothing:
        for stream in (1, 2):
            os.dup2(nothing.fileno(), stream)


def serve(file: int) -> None:
    """Compiles the kernel that is asked for, and says when it is done."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with socket.socket(fileno=file) as connection, suppress(Exception):
        parts = iter(lambda: connection.recv(1 << 16), b"")
        compile_request(pickle.loads(b"".join(parts)))
        connection.sendall(DONE)


def compile_request(request: Request) -> Any:
    """Compiles a kernel as a launch would."""
    from triton.compiler import ASTSource, compile

    kernel = getattr(importlib.import_module(request.module), request.name)
    source = ASTSource(kernel, request.signature, request.constants, request.attributes)
    return compile(source, target=request.target, options=request.options)
