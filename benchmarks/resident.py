"""Time and memory of processes of a machine that keep the same decoded images.

    python benchmarks/resident.py path/to/images --processes 1 4 --out rows.json

Every row opens the training images as `t2t train` on a CPU does, with one worker for
each process. Memory is that of all processes above what they have before: their own,
and the machine's shared memory, so nothing else should use that meanwhile.
"""

import argparse
import json
import multiprocessing
import os
import socket
import sys
import time
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any

import torch

from t2t.data.batches import LoaderOptions, open_batches
from t2t.data.crops import RandomCrop
from t2t.data.resident import ResidentBatches
from t2t.data.sources import open_source
from t2t.lab.bench.timing import cpu_name
from t2t.training.distributed import barrier, init_distributed
from t2t.training.loaders import peers_of

PAUSE = 0.05


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--alone", action="store_true", help="each decodes all images")
    parser.add_argument("--out", type=Path, help="add the rows there as JSON")
    given = parser.parse_args()
    rows = json.loads(given.out.read_text()) if given.out and given.out.exists() else []
    for size in given.processes:
        rows.append(measure(given.data, size, given.alone))
        print(rows[-1], flush=True)
    if given.out:
        given.out.write_text(json.dumps(rows, indent=1) + "\n")


def measure(data: str, size: int, alone: bool) -> dict[str, Any]:
    """The row of so many processes."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    processes = [
        context.Process(target=work, args=(rank, size, port, data, alone, queue))
        for rank in range(size)
    ]
    for each in processes:
        each.start()
    pids = [each.pid for each in processes]
    # All wait for each other before they decode, and at the end.
    seen: list[Any] = []
    before = most = 0
    while any(each.is_alive() for each in processes):
        most = max(most, memory(pids))
        while not queue.empty():
            seen.append(queue.get())
            if len(seen) == size:
                before = most = memory(pids)
        time.sleep(PAUSE)
    seconds, num_images, num_bytes = max(seen[size:])
    return {
        "processes": size,
        "shared": not alone,
        "images": num_images,
        "pixels_gb": round(num_bytes / 1e9, 3),
        "peak_gb": round((most - before) / 1e9, 3),
        "peak_over_pixels": round((most - before) / num_bytes, 2),
        "seconds": round(seconds, 1),
        "cpu": f"{cpu_name()}, {len(os.sched_getaffinity(0))} cores",
        "torch": torch.__version__,
        "command": " ".join(["python", *sys.argv]),
    }


def work(
    rank: int, size: int, port: int, data: str, alone: bool, queue: "Queue[Any]"
) -> None:
    """Opens the images as one of several processes."""
    environment = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank}
    environment |= {"LOCAL_WORLD_SIZE": size, "MASTER_PORT": port}
    os.environ.update({key: str(value) for key, value in environment.items()})
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    torch.set_num_threads(1)
    with init_distributed("cpu") as world:
        source = open_source(data, "train")
        queue.put(None)
        time.sleep(1)
        barrier(world)
        started = time.monotonic()
        batches = open_batches(
            source,
            batch_size=8 * size,
            crops=(RandomCrop(size=(128, 128)),),
            device="cpu",
            rank=rank,
            world_size=size,
            loader_options=LoaderOptions(resident=True, num_workers=1),
            peers=None if alone else peers_of(world),
        )
        took = time.monotonic() - started
        assert isinstance(batches, ResidentBatches)
        queue.put((took, len(source), batches.resident.images.pixels.numel()))
        barrier(world)
        time.sleep(1)


def memory(pids: list[int | None]) -> int:
    """Bytes of the processes' own memory and of the machine's shared memory."""
    total = fields("/proc/meminfo")["Shmem"]
    for pid in pids:
        total += fields(f"/proc/{pid}/smaps_rollup").get("Pss_Anon", 0)
    return total


def fields(path: str) -> dict[str, int]:
    """The sizes in a table of the system; empty if the process has ended."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return {}
    pairs = [line.split() for line in lines if line.endswith(" kB")]
    return {pair[0].removesuffix(":"): 1024 * int(pair[1]) for pair in pairs}


if __name__ == "__main__":
    main()
