"""What one process of a machine makes and all its processes share in memory."""

import mmap
import os
import pickle
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch.distributed as dist

from t2t.training.distributed import World, barrier

Made = TypeVar("Made")
SHARED_MEMORY = Path("/dev/shm")
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
    file: str | None = None
    made_here: list[Made] = []
    if world.local_rank == 0:
        made_here.append(make())
        file = write(made_here[0])
    files: list[Any] = [None] * world.size
    dist.all_gather_object(files, file, group=world.control)
    file = files[world.rank - world.local_rank]
    if file is None:
        return made_here[0] if made_here else make()
    made_here.clear()  # the main process needs no second copy
    made = read(Path(file))
    barrier(world)
    if world.local_rank == 0:
        Path(file).unlink()  # mapped memory stays
    return made


def write(made: object) -> str | None:
    """Writes an object to shared memory or a temporary file; None if it cannot be."""
    buffers: list[pickle.PickleBuffer] = []
    try:
        head = pickle.dumps(made, protocol=5, buffer_callback=buffers.append)
    except Exception:  # objects refuse in many ways
        return None
    parts: list[bytes | memoryview] = [head, *(each.raw() for each in buffers)]
    sizes = [memoryview(part).nbytes for part in parts]
    index = pickle.dumps(sizes)
    folder = folder_for(sum(sizes))
    descriptor, name = tempfile.mkstemp(prefix="t2t-", suffix=".shared", dir=folder)
    try:
        with open(descriptor, "wb") as file:
            file.write(len(index).to_bytes(8, "little") + index)
            for part in parts:
                file.write(bytes(-file.tell() % _ALIGNMENT))
                file.write(part)
    except OSError:  # no space for it
        os.unlink(name)
        return None
    return name


def read(path: Path) -> Any:
    """The object in a file, whose arrays stay in the mapped file."""
    with path.open("rb") as file:
        # A private mapping: what a process writes is its own.
        memory = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
    start = 8 + int.from_bytes(memory[:8], "little")
    parts = []
    for size in pickle.loads(memory[8:start]):
        start += -start % _ALIGNMENT
        parts.append(memory[start : start + size])
        start += size
    return pickle.loads(parts[0], buffers=parts[1:])


def folder_for(num_bytes: int) -> Path | None:
    """Shared memory if it has room; else the folder of temporary files."""
    if SHARED_MEMORY.is_dir() and os.access(SHARED_MEMORY, os.W_OK):
        free = shutil.disk_usage(SHARED_MEMORY).free
        if free > 2 * num_bytes:
            return SHARED_MEMORY
    return None
