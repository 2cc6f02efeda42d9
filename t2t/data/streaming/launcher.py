"""The process that forks the workers of a pool, started before the pool is there.

It imports PyTorch, which takes seconds, while the training process does the same. So
this module must not import it.
"""

import atexit
import os
import select
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from t2t.data.resources import num_cores
from t2t.torchrun import env_count

# Not `-m`: workers would then send objects whose classes are in `__main__`.
_PROGRAM = """\
import sys
from {module} import main
main(*map(int, sys.argv[1:]))
"""
_WORKERS = "t2t.data.streaming.worker"
_ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "",
    # A process with threads must not fork, and each worker needs one thread only.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}
# Linux passes 253 files at once.
_FILES_AT_ONCE = 250
_MORE, _LAST = b"+", b"."
_CHECK_EVERY = 1.0
_DEVICES = Path("/dev")
# With fewer cores, the training process would import more slowly.
_MIN_CORES = 8
_NUM_POOLS = 2
"""A pool for training and one for validation images."""


class Launcher(NamedTuple):
    """A process that waits for the files of a pool."""

    process: subprocess.Popen[bytes]
    """It ends when its standard input is closed."""
    connection: socket.socket


_SPARE: list[Launcher] = []


def start_launchers_early(device: str | None) -> None:
    """Starts the launchers of a run, if there is a GPU whose images they may decode."""
    if (
        feeds_gpu(device)
        and num_cores() >= _MIN_CORES
        and env_count("WORLD_SIZE") == 1
        and hasattr(os, "memfd_create")
    ):
        with suppress(OSError):  # said where they are needed
            _SPARE.extend(start_launcher() for _ in range(_NUM_POOLS))


def feeds_gpu(device: str | None) -> bool:
    """Whether a run will use a GPU, as far as one can tell without PyTorch."""
    if not (device or "cuda").startswith("cuda"):
        return False
    is_hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    return not is_hidden and any(_DEVICES.glob("nvidia[0-9]*"))


def import_paths() -> list[str]:
    """The import path of this process, for another one."""
    return [each or os.curdir for each in sys.path if isinstance(each, str)]


def start_launcher(module: str = _WORKERS) -> Launcher:
    """A new process, which begins with its imports and runs the module's `main`.

    That gets the number of this process and the file of its end of the connection.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        try:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-P", "-c", _PROGRAM.format(module=module)),
                    *(str(os.getpid()), str(theirs.fileno())),
                ],
                stdin=subprocess.PIPE,
                pass_fds=[theirs.fileno()],
                env={
                    **os.environ,
                    **_ENVIRONMENT,
                    "PYTHONPATH": os.pathsep.join(import_paths()),
                },
                process_group=0,  # Ctrl-C is for the training process alone
            )
        except BaseException:
            ours.close()
            raise
    return Launcher(process, ours)


def take_launcher() -> Launcher:
    """One that was started early, else a new one."""
    while _SPARE:
        launcher = _SPARE.pop()
        if launcher.process.poll() is None:
            return launcher
        end_launcher(launcher)
    return start_launcher()


def end_launcher(launcher: Launcher) -> None:
    """Ends one that has no workers; it may still be importing."""
    launcher.connection.close()
    launcher.process.kill()
    launcher.process.communicate()  # closes its input, and waits


@atexit.register
def end_spare_launchers() -> None:
    """Ends those that nothing has used."""
    while _SPARE:
        end_launcher(_SPARE.pop())


def send_files(connection: socket.socket, files: Sequence[int]) -> None:
    """Sends the open files of a pool to its launcher."""
    parts = [
        files[start : start + _FILES_AT_ONCE]
        for start in range(0, len(files), _FILES_AT_ONCE)
    ]
    for number, part in enumerate(parts, start=1):
        word = _LAST if number == len(parts) else _MORE
        socket.send_fds(connection, [word], part)


def receive_files(connection: socket.socket, parent: int) -> list[int]:
    """The files that `send_files` sends; none if the training process ends first."""
    files: list[int] = []
    word = _MORE
    while word == _MORE:
        # Another process may have inherited the other end, so check the parent too.
        while not select.select([connection], [], [], _CHECK_EVERY)[0]:
            if os.getppid() != parent:
                return []
        word, some, *_ = socket.recv_fds(connection, 1, _FILES_AT_ONCE)
        files += some
    return files if word == _LAST else []
