"""Worker processes: how they start, what one does, and how they end.

One process is started, which imports and unpickles what all need and forks the
workers: they share that memory, and a hundred start as fast as one. Nothing of the
training process is forked, nothing here touches CUDA, and all end with it, however it
ends.
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
from contextlib import ExitStack
from typing import Any, NoReturn

import numpy as np

from t2t.data.decoding.decode import DecodeOptions, decoder_name
from t2t.data.decoding.in_flight import BUDGET
from t2t.data.sources.base import Source
from t2t.data.streaming.filling import Filled, Filler
from t2t.data.streaming.memory import Block, Memory, mapped

LONGEST_MESSAGE = 1 << 16

# Reads that a process has under way at once where the storage is far.
_NUM_READERS = 16
# The training process goes first where there are not enough cores.
_NICENESS = 5
_KILL_WITH_PARENT = 1  # PR_SET_PDEATHSIG
_CHECK_EVERY = 1.0
_ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "",
    # A process with threads must not fork, and each worker is one thread among many.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}


class NotPortable(Exception):  # noqa: N818 (it says what a source is)
    """A source that cannot be handed to another process, and why."""


class _Pickler(pickle.Pickler):
    """Refuses what only the script that was started defines."""

    def reducer_override(self, thing: Any) -> Any:
        if getattr(thing, "__module__", None) == "__main__" and callable(thing):
            name = getattr(thing, "__qualname__", str(thing))
            raise pickle.PicklingError(f"{name} is defined in the script itself")
        return NotImplemented


def pickled(source: Source, decoding: DecodeOptions) -> bytes:
    """What workers are told once."""
    file = io.BytesIO()
    try:
        _Pickler(file, pickle.HIGHEST_PROTOCOL).dump((source, decoding))
    except Exception as error:  # things say in many ways that they cannot be sent
        raise NotPortable(str(error)) from error
    return file.getvalue()


def start_workers(
    owner: object, told: bytes, num_workers: int, memory: Memory
) -> tuple[subprocess.Popen[bytes], list[socket.socket]]:
    """Their keeper, and a socket of each worker; all end with `owner`."""
    with ExitStack() as ours, ExitStack() as theirs:
        pairs = []
        for _ in range(num_workers):
            one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            pairs.append((ours.enter_context(one), theirs.enter_context(other)))
        writing = theirs.enter_context(open(os.memfd_create("t2t-source"), "wb"))
        writing.write(told)
        writing.flush()
        descriptors = [
            *(writing.fileno(), memory.descriptor),
            *(other.fileno() for _, other in pairs),
        ]
        process = subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", __name__),
                *map(str, (os.getpid(), *descriptors)),
            ],
            stdin=subprocess.PIPE,
            pass_fds=descriptors,
            env={
                **os.environ,
                **_ENVIRONMENT,
                "PYTHONPATH": os.pathsep.join(_import_paths()),
            },
            process_group=0,  # Ctrl-C is for the training process alone
        )
        ours.pop_all()  # they stay open until the owner's end
    sockets = [one for one, _ in pairs]
    weakref.finalize(owner, _end, process, sockets, os.getpid())
    return process, sockets


def _import_paths() -> list[str]:
    """Where this process finds what it imports, for one that starts in its folder."""
    return [path or os.curdir for path in sys.path if isinstance(path, str)]


def _end(
    process: subprocess.Popen[bytes], sockets: list[socket.socket], owner: int
) -> None:
    for each in sockets:
        each.close()
    assert process.stdin is not None
    process.stdin.close()
    if os.getpid() == owner:  # and not a fork of it
        try:
            process.wait(timeout=1)
        except subprocess.TimeoutExpired:  # still importing
            process.kill()
            process.wait()


def main(arguments: list[str]) -> None:
    """Forks the workers, then waits for the end of the process that asked for them."""
    # They end with the training process, which may still need them for a checkpoint.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how workers ended
    parent, source_file, memory_file, *descriptors = map(int, arguments)
    sockets = [socket.socket(fileno=descriptor) for descriptor in descriptors]
    try:
        array = mapped(memory_file)
        with open(source_file, "rb") as file:
            file.seek(0)
            source, decoding = pickle.load(file)
        decoder_name()  # imports it
        BUDGET.share(memory_file)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        for each in sockets:
            each.send(answered(0, reason[: LONGEST_MESSAGE // 8]))
        return
    keeper = os.getpid()
    for each in sockets:
        if os.fork() == 0:
            for other in sockets:
                if other is not each:
                    other.close()
            serve(each, Filler(source, decoding, array, _NUM_READERS), keeper)
    for each in sockets:
        each.close()
    # Another process may hold the other end of the pipe: its end is not enough.
    while os.getppid() == parent and not select.select([0], [], [], _CHECK_EVERY)[0]:
        pass
    os._exit(0)  # tidying up would only keep those waiting who close us


def serve(connection: socket.socket, filler: Filler, keeper: int) -> NoReturn:
    """Does one task after the other, until there is nobody to do them for."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(_KILL_WITH_PARENT, signal.SIGKILL, 0, 0, 0)
    try:
        os.nice(_NICENESS)
        connection.send(answered(0, os.getpid()))
        while os.getppid() == keeper and (message := connection.recv(LONGEST_MESSAGE)):
            number, start, size, decodes, numbers = pickle.loads(message)
            wanted = np.frombuffer(numbers, dtype=np.int64).reshape(-1, 3)
            # The last byte tells what a process was at, should it end over it.
            filler.array[start + size - 1] = 1
            try:
                filled = filler.fill(wanted, decodes, Block(start, size - 1))
                answer: Any = brief(filled)
            except Exception as error:
                answer = portable(error)
            connection.send(answered(number, answer))
    except OSError:
        pass  # the other end is gone
    finally:
        os._exit(0)


def answered(number: int, answer: Any) -> bytes:
    """A worker's message: which task it answers, 0 for none, and what."""
    return number.to_bytes(8, "little") + pickle.dumps(answer)


def answer_of(message: bytes | bytearray | memoryview) -> tuple[int, Any]:
    """The parts of a worker's message; an answer that cannot be read is an error."""
    try:
        answer = pickle.loads(message[8:])
    except Exception as error:
        answer = RuntimeError(f"A worker's answer cannot be read: {error}")
    return int.from_bytes(message[:8], "little"), answer


def brief(filled: Filled) -> Filled:
    """The same, its reasons cut to what fits a message."""
    most = LONGEST_MESSAGE // 8 // max(len(filled.reasons), 1)
    reasons = {row: reason[:most] for row, reason in filled.reasons.items()}
    return filled._replace(reasons=reasons)


def portable(error: Exception) -> Exception:
    """The same exception, or its words where it cannot be sent."""
    try:
        message = pickle.dumps(error)
        pickle.loads(message)
    except Exception:
        message = b""
    if 0 < len(message) < LONGEST_MESSAGE // 2:
        return error
    words = f"{type(error).__name__}: {error}"
    return RuntimeError(words[: LONGEST_MESSAGE // 8])


if __name__ == "__main__":
    main(sys.argv[1:])
