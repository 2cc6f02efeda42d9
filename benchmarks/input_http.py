"""Images/s of tar shards from a web server on this machine, beside local shards.

    python benchmarks/input_http.py path/to/images --out rows.json

The images are packed into shards, which a server in another process sends over the
loopback. Every row is one epoch: `read` reads the files in the order of training,
`pipeline` also decodes and crops them. Rows from the server start with an empty cache,
so they download every shard; a cache of a third of the data removes some meanwhile.
"""

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch

from t2t.data.batches import LoaderOptions, open_batches
from t2t.data.crops import RandomCrop
from t2t.data.packing.pack import pack
from t2t.data.sources import Source, open_source
from t2t.lab.bench.timing import cpu_name

SIZE = (128, 128)


class Handler(SimpleHTTPRequestHandler):
    """Sends files and counts nothing."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments: object) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data")
    parser.add_argument("--shard-size", type=int, default=256)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seconds", type=float, default=60, help="most of a row")
    parser.add_argument("--repeat", type=int, default=3, help="the median is kept")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        rows = measure(given, Path(work))
    if given.out:
        given.out.write_text(json.dumps(rows, indent=1) + "\n")


def measure(given: argparse.Namespace, work: Path) -> list[dict[str, Any]]:
    """The rows, printed as they are measured."""
    folder = work / "pack"
    pack(given.data, folder, shard_size=given.shard_size)
    size = sum(each.stat().st_size for each in folder.rglob("*.tar"))
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    server = context.Process(target=serve, args=(folder, theirs), daemon=True)
    server.start()
    address = f"http://127.0.0.1:{ours.recv()}"
    rows: list[dict[str, Any]] = []
    kinds = {"local": (folder, None), "http": (address, 2.0), "third": (address, 1 / 3)}
    for stage in ("read", "pipeline"):
        for kind, (where, share) in kinds.items():
            rates = []
            for number in range(given.repeat):
                os.environ["T2T_CACHE"] = str(work / f"cache-{stage}-{kind}-{number}")
                if share is not None:
                    os.environ["T2T_SHARD_CACHE_GB"] = str(share * size / 1e9)
                source = open_source(str(where), "train")
                rates.append(rate(STAGES[stage], source, given))
            rows.append(row_of(stage, kind, rates, size, source, given))
            local = next(each for each in rows if each["stage"] == stage)
            share_of_local = rows[-1]["images_per_second"] / local["images_per_second"]
            rows[-1]["share_of_local"] = round(share_of_local, 3)
            print(rows[-1], flush=True)
    server.terminate()
    return rows


def row_of(
    stage: str,
    kind: str,
    rates: list[float],
    size: int,
    source: Source,
    given: argparse.Namespace,
) -> dict[str, Any]:
    """The row of a stage and a kind of shards."""
    return {
        "stage": stage,
        "shards": {"third": "http, cache of a third"}.get(kind, kind),
        "images": len(source),
        "megabytes": round(size / 1e6),
        "num_shards": -(-len(source) // given.shard_size),
        "workers": given.workers,
        "images_per_second": round(float(np.median(rates))),
        "all": [round(each) for each in rates],
        "cpu": f"{cpu_name()}, {len(os.sched_getaffinity(0))} cores",
        "torch": torch.__version__,
        "command": " ".join(["python", *sys.argv]),
    }


def serve(folder: Path, ready: Connection) -> None:
    """Serves a folder on the loopback."""
    handler = partial(Handler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        ready.send(server.server_address[1])
        server.serve_forever()


def rate(
    stage: Callable[[Source, argparse.Namespace], Any],
    source: Source,
    given: argparse.Namespace,
) -> float:
    """Images/s of an epoch, or of the first seconds of one."""
    started = time.perf_counter()
    num_images = 0
    for number in stage(source, given):
        num_images += number
        if time.perf_counter() - started > given.seconds:
            break
    return num_images / (time.perf_counter() - started)


def pipeline(source: Source, given: argparse.Namespace, read_only: bool = False) -> Any:
    """Batches as training has them."""
    batches = open_batches(
        source,
        batch_size=given.batch,
        crops=(RandomCrop(size=SIZE),),
        device="cpu",
        loader_options=LoaderOptions(resident=False, num_workers=given.workers),
    )
    sampler = batches.stream.sampler  # type: ignore[attr-defined]
    num_steps = len(source) // given.batch
    if not read_only:
        for batch in batches.steps(0, num_steps):
            yield len(batch.images)
        return
    for step in range(num_steps):
        for index in sampler.batch_indices(step).indices.tolist():
            source.read(index)
        yield given.batch


STAGES = {"read": partial(pipeline, read_only=True), "pipeline": pipeline}


if __name__ == "__main__":
    main()
