"""Worker processes: how they start, run tasks and end.

One process is started, the launcher. It imports and unpickles what all workers need,
then forks them: they share that memory, and a hundred start as fast as one. The
training process itself is never forked, workers do not use CUDA, and all of them end
when the training process ends, even if it is killed.
"""

import ctypes
import io
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import weakref
from contextlib import ExitStack, suppress
from typing import Any, NoReturn

import numpy as np

from t2t.data.decoding.decode import DecodeOptions, decode
from t2t.data.decoding.pixel_budget import BUDGET
from t2t.data.sources.base import Source
from t2t.data.streaming.image_reader import ImageReader, ReadResult
from t2t.data.streaming.launcher import (
    import_paths,
    receive_files,
    send_files,
    take_launcher,
)
from t2t.data.streaming.shared_memory import Arena, Block, map_file
from t2t.user_code import files_for, run_files

MAX_MESSAGE = 1 << 16
# The part of a message that an error or the reasons for damage may take.
_MAX_TEXT = MAX_MESSAGE // 8

# Threads that read in a worker process if the storage is slow.
_NUM_READERS = 16
# The training process has priority if there are too few cores.
_NICENESS = 5
_PR_SET_PDEATHSIG = 1
_CHECK_EVERY = 1.0


class NotPicklable(Exception):  # noqa: N818 (it says what a source is)
    """A source that cannot be sent to another process, and why."""


class _Pickler(pickle.Pickler):
    """Refuses classes and functions of the main script, which workers do not run."""

    def reducer_override(self, thing: Any) -> Any:
        if getattr(thing, "__module__", None) == "__main__" and callable(thing):
            name = getattr(thing, "__qualname__", str(thing))
            raise pickle.PicklingError(f"{name} is defined in the script itself")
        return NotImplemented


def pickled(source: Source, decoding: DecodeOptions) -> bytes:
    """The source, the options and the user's files, as bytes for the launcher."""
    file = io.BytesIO()
    try:
        _Pickler(file, pickle.HIGHEST_PROTOCOL).dump((source, decoding))
    except Exception as error:  # objects refuse in many ways
        raise NotPicklable(str(error)) from error
    return pickle.dumps(files_for(file.getvalue())) + file.getvalue()


def start_workers(
    owner: object, sent: bytes, num_workers: int, arena: Arena
) -> tuple[subprocess.Popen[bytes], list[socket.socket]]:
    """The launcher, and a socket per worker; all end with `owner`."""
    with ExitStack() as ours, ExitStack() as theirs:
        pairs = []
        for _ in range(num_workers):
            one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            pairs.append((ours.enter_context(one), theirs.enter_context(other)))
        file = theirs.enter_context(open(os.memfd_create("t2t-source"), "wb"))
        file.write(pickle.dumps(import_paths()) + sent)
        file.flush()
        launcher, connection = take_launcher()
        theirs.enter_context(connection)
        sockets = [one for one, _ in pairs]
        weakref.finalize(owner, _stop_workers, launcher, sockets, os.getpid())
        ours.pop_all()  # keep them open until the owner ends
        files = [file.fileno(), arena.descriptor]
        files += [other.fileno() for _, other in pairs]
        with suppress(ConnectionError):  # it has died; the listener will notice
            send_files(connection, files)
    return launcher, sockets


def _stop_workers(
    launcher: subprocess.Popen[bytes], sockets: list[socket.socket], owner: int
) -> None:
    for each in sockets:
        each.close()
    assert launcher.stdin is not None
    launcher.stdin.close()
    if os.getpid() == owner:  # not in a forked copy
        try:
            launcher.wait(timeout=1)
        except subprocess.TimeoutExpired:  # still importing
            launcher.kill()
            launcher.wait()


def main(parent: int, connection: int) -> None:
    """The launcher: forks the workers, then waits until the training process ends."""
    # Only the training process ends workers: after Ctrl-C it still finishes a step.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # leaves no zombies
    with socket.socket(fileno=connection) as files_from:
        files = receive_files(files_from, parent)
    if not files:
        return
    source_file, arena_file, *descriptors = files
    sockets = [socket.socket(fileno=descriptor) for descriptor in descriptors]
    try:
        array = map_file(arena_file)
        with open(source_file, "rb") as file:
            file.seek(0)
            sys.path[:] = pickle.load(file)
            run_files(pickle.load(file))
            source, decoding = pickle.load(file)
        import_decoder(source, decoding)
        BUDGET.share(arena_file)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"[:_MAX_TEXT]
        for each in sockets:
            each.send(pickle.dumps(reason))
        return
    launcher = os.getpid()
    for each in sockets:
        if os.fork() == 0:
            for other in sockets:
                if other is not each:
                    other.close()
            worker_loop(
                each, ImageReader(source, decoding, array, _NUM_READERS), launcher
            )
    for each in sockets:
        each.close()
    # Another process may have inherited the pipe's other end, so check the parent too.
    while os.getppid() == parent and not select.select([0], [], [], _CHECK_EVERY)[0]:
        pass
    os._exit(0)  # without cleanup, for which the training process would wait


def import_decoder(source: Source, decoding: DecodeOptions) -> None:
    """Imports what decodes the source's images, before workers are forked."""
    with suppress(Exception):  # reported where the image is needed
        decode(source.read(0), **decoding._asdict())


def worker_loop(
    connection: socket.socket, reader: ImageReader, launcher: int
) -> NoReturn:
    """A worker process: sends its id, then runs tasks until the socket is closed.

    The reply to a task is a `ReadResult` or the exception it raised.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    try:
        os.nice(_NICENESS)
        connection.send(pickle.dumps(os.getpid()))
        while os.getppid() == launcher and (message := connection.recv(MAX_MESSAGE)):
            start, size, decodes, numbers = pickle.loads(message)
            wanted = np.frombuffer(numbers, dtype=np.int64).reshape(-1, 3)
            # The block's last byte records that the task has started.
            reader.array[start + size - 1] = 1
            reply: ReadResult | Exception
            try:
                reply = _truncate_reasons(
                    reader.read_into(Block(start, size - 1), wanted, decodes)
                )
            except Exception as error:
                reply = _picklable(error)
            connection.send(pickle.dumps(reply))
    except OSError:
        pass  # the training process has ended
    finally:
        os._exit(0)


def _truncate_reasons(result: ReadResult) -> ReadResult:
    """The result with its reasons shortened to fit into a message."""
    longest = _MAX_TEXT // max(len(result.reasons), 1)
    reasons = {row: reason[:longest] for row, reason in result.reasons.items()}
    return result._replace(reasons=reasons)


def _picklable(error: Exception) -> Exception:
    """The same exception, or a RuntimeError with its text if it cannot be sent."""
    try:
        message = pickle.dumps(error)
        pickle.loads(message)
    except Exception:
        message = b""
    if 0 < len(message) < MAX_MESSAGE // 2:
        return error
    return RuntimeError(f"{type(error).__name__}: {error}"[:_MAX_TEXT])
