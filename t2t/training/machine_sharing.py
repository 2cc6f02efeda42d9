"""What one process of a machine makes and all its processes share in memory."""

import mmap
import os
import pickle
import tempfile
from collections.abc import Callable
from contextlib import suppress
from typing import IO, Any, TypeVar

import torch.distributed as dist

from t2t.data.resources import free_memory
from t2t.data.shared_file import (
    TOKEN_BYTES,
    Address,
    address_of,
    new_token,
    open_address,
)
from t2t.errors import first_line
from t2t.log_level import logger
from t2t.training.distributed import World, barrier

Made = TypeVar("Made")
_UNSHARED = (
    "Processes of this machine cannot share the data (%s): each reads it by itself."
)
_ALIGNMENT = 64


def made_once_per_machine(world: World, make: Callable[[], Made]) -> Made:
    """The result of a function that one process per machine calls.

    The others map its arrays into memory instead of copying them. What cannot be sent
    to another process is made by each, one after the first, which may download data.
    """
    if world.local_size == 1:
        made = make()
        barrier(world)
        return made
    file: IO[bytes] | None = None
    made_here: list[Made] = []
    if world.local_rank == 0:
        made_here.append(make())
        file = write(made_here[0])
    addresses: list[Any] = [None] * world.size
    own = None if file is None else address_of(file.fileno())
    dist.all_gather_object(addresses, own, group=world.control)
    address = addresses[world.rank - world.local_rank]
    if address is None:
        return made_here[0] if made_here else make()
    made_here.clear()  # the first process needs no second copy
    found = [read(file.fileno())] if file is not None else read_from(address)
    barrier(world)
    if file is not None:
        file.close()  # mapped memory stays
    return found[0] if found else make()


def write(made: object) -> IO[bytes] | None:
    """Writes an object to a file without a name; None if it cannot be.

    The system frees the file when no process has it open, even if all are killed.
    """
    buffers: list[pickle.PickleBuffer] = []
    try:
        head = pickle.dumps(made, protocol=5, buffer_callback=buffers.append)
    except Exception as error:  # objects refuse in many ways
        logger.debug(_UNSHARED, first_line(error))
        return None
    parts: list[bytes | memoryview] = [head, *(each.raw() for each in buffers)]
    sizes = [memoryview(part).nbytes for part in parts]
    index = pickle.dumps(sizes)
    file: IO[bytes] | None = None
    try:
        file = nameless_file(sum(sizes))
        file.write(new_token() + len(index).to_bytes(8, "little") + index)
        for part in parts:
            file.write(bytes(-file.tell() % _ALIGNMENT))
            file.write(part)
        file.flush()
    except OSError as error:  # no space for it
        logger.debug(_UNSHARED, error)
        if file is not None:
            with suppress(OSError):  # nor for what is left to write
                file.close()
        return None
    return file


def nameless_file(num_bytes: int) -> IO[bytes]:
    """A file in memory if there is room; else in the folder of temporary files."""
    if hasattr(os, "memfd_create") and free_memory() > 2 * num_bytes:
        return open(os.memfd_create("t2t-data"), "w+b")
    return tempfile.TemporaryFile()


def read_from(address: Address) -> list[Any]:
    """The object in a file of another process; empty if it cannot be opened."""
    try:
        descriptor = open_address(address, os.O_RDONLY)
        try:
            return [read(descriptor)]
        finally:
            os.close(descriptor)
    except OSError as error:
        logger.debug(_UNSHARED, error)
        return []


def read(descriptor: int) -> Any:
    """The object in a file, whose arrays stay in the mapped file."""
    # A private mapping: what a process writes is its own.
    memory = memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY))
    start = TOKEN_BYTES + 8
    start += int.from_bytes(memory[TOKEN_BYTES:start], "little")
    parts = []
    for size in pickle.loads(memory[TOKEN_BYTES + 8 : start]):
        start += -start % _ALIGNMENT
        parts.append(memory[start : start + size])
        start += size
    return pickle.loads(parts[0], buffers=parts[1:])
