"""Eight processes read each row group and each shard once per epoch, together."""

import io
import multiprocessing
import os
import pickle
import tarfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from t2t.data.batches import LoaderOptions, open_batches
from t2t.data.crops import CenterCrop
from t2t.data.sources import Source, open_source
from t2t.data.sources.parquet import ParquetSource
from t2t.data.sources.storage import LocalFile

NUM_PROCESSES = 8
NUM_BLOCKS, IN_EACH = 64, 30
BATCH = 48
NUM_STEPS = NUM_BLOCKS * IN_EACH // BATCH
Reads = Counter[Any]


def encoded(index: int) -> bytes:
    """An image whose pixels are its index."""
    file = io.BytesIO()
    high, low = divmod(index, 256)
    Image.new("RGB", (2, 2), (high, low, 0)).save(file, "PNG")
    return file.getvalue()


@pytest.fixture(scope="module")
def parquet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four files of 16 row groups of 30 images."""
    folder = tmp_path_factory.mktemp("parquet")
    in_file = NUM_BLOCKS * IN_EACH // 4
    for number in range(4):
        indices = range(number * in_file, (number + 1) * in_file)
        images = [{"bytes": encoded(index), "path": None} for index in indices]
        labels = [index % 2 for index in indices]
        table = pa.table({"image": images, "label": labels})
        pq.write_table(
            table, folder / f"train-{number}.parquet", row_group_size=IN_EACH
        )
    return folder


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """64 shards of 30 images."""
    folder = tmp_path_factory.mktemp("shards")
    for number in range(NUM_BLOCKS):
        with tarfile.open(folder / f"x-{number:02}.tar", "w") as tar:
            for index in range(number * IN_EACH, (number + 1) * IN_EACH):
                label = b"%d" % (index % 2)
                for name, data in (("png", encoded(index)), ("cls", label)):
                    member = tarfile.TarInfo(f"{index:04}.{name}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
    (folder / "classes.txt").write_text("cat\ndog\n")
    return folder


@pytest.fixture
def web(shards: Path) -> Iterator[tuple[str, Reads]]:
    """A server of the shards on the loopback, and what it has sent."""
    sent: Reads = Counter()

    class Handler(SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            sent[self.path] += 1
            super().do_GET()

        def log_message(self, *arguments: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        request_queue_size = 128  # eight processes ask at once

    served = partial(Handler, directory=str(shards))
    with Server(("127.0.0.1", 0), served) as http:
        thread = threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{http.server_address[1]}", sent
        http.shutdown()


def read_by_eight(
    folder: Path,
    work: Callable[[int], tuple[Source, Reads]],
    num_steps: int = NUM_STEPS,
) -> Reads:
    """An epoch by eight processes, which all see other images; what they read."""

    def run(rank: int) -> None:
        source, reads = work(rank)
        reads.clear()  # of what was read to open it
        batches = open_batches(
            source,
            batch_size=BATCH,
            crops=(CenterCrop(size=(2, 2), fraction=1.0),),
            device="cpu",
            rank=rank,
            world_size=NUM_PROCESSES,
            loader_options=LoaderOptions(resident=False, num_workers=2),
        )
        reads.clear()
        seen: list[int] = []
        for batch in batches.steps(0, num_steps):
            pixels = batch.images[:, :2, 0, 0].long()
            assert (pixels[:, 0] * 256 + pixels[:, 1]).tolist() == (
                batch.indices.tolist()
            )
            seen += batch.indices.tolist()
        (folder / f"seen-{rank}").write_bytes(pickle.dumps((seen, reads)))

    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=run, args=(n,)) for n in range(NUM_PROCESSES)]
    for each in processes:
        each.start()
    for each in processes:
        each.join(60)
        assert each.exitcode == 0
    found = [
        pickle.loads((folder / f"seen-{rank}").read_bytes())
        for rank in range(NUM_PROCESSES)
    ]
    seen = [index for indices, _ in found for index in indices]
    assert len(set(seen)) == len(seen) == num_steps * BATCH
    return sum((reads for _, reads in found), Counter())


def test_eight_processes_read_each_row_group_once(
    parquet: Path, tmp_path: Path
) -> None:
    files = sorted(map(str, parquet.glob("*.parquet")))
    largest = ParquetSource(files)._largest_group

    def work(rank: int) -> tuple[Source, Reads]:
        # As with data of many gigabytes, a quarter of the row groups fit in memory.
        source = ParquetSource(files, cache_bytes=16 * largest)
        reads: Reads = Counter()
        plain = source._read_group

        def counted(group: int) -> Any:
            reads[group] += 1
            return plain(group)

        source._read_group = counted  # type: ignore[method-assign]
        return source, reads

    reads = read_by_eight(tmp_path, work)
    assert reads == Counter(range(NUM_BLOCKS))


def test_eight_processes_read_each_byte_of_local_shards_once(
    shards: Path, tmp_path: Path
) -> None:
    def work(rank: int) -> tuple[Source, Reads]:
        source, reads = open_source(str(shards), "all"), Counter[Any]()
        plain = LocalFile.read

        def counted(self: LocalFile, offset: int, size: int) -> bytes:
            reads[self.path, offset] += 1
            return plain(self, offset, size)

        LocalFile.read = counted  # type: ignore[method-assign]
        return source, reads

    reads = read_by_eight(tmp_path, work)
    assert len(reads) == NUM_BLOCKS * IN_EACH
    assert set(reads.values()) == {1}
    assert len({path for path, _ in reads}) == NUM_BLOCKS


@pytest.mark.parametrize("machines", [8, 1])
def test_a_server_sends_each_shard_once_to_eight_processes(
    machines: int,
    web: tuple[str, Reads],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    address, sent = web
    monkeypatch.setenv("T2T_CACHE", str(tmp_path / "indexed"))
    spec = f"{address}/x-{{00..{NUM_BLOCKS - 1}}}.tar"
    open_source(spec, "all")  # every machine would read them once for their index
    indexes = tmp_path / "indexed" / "indexes"
    sent.clear()

    def work(rank: int) -> tuple[Source, Reads]:
        cache = tmp_path / f"machine-{rank % machines}"
        os.environ["T2T_CACHE"] = str(cache)
        cache.mkdir(exist_ok=True)
        if not (cache / "indexes").exists():
            # Processes of one machine may do this at once.
            with suppress(FileExistsError):
                (cache / "indexes").symlink_to(indexes)
        return open_source(spec, "all"), Counter()

    # Five steps are read ahead: the last ones would ask for shards of the next epoch.
    read_by_eight(tmp_path, work, NUM_STEPS - 5)
    shards = {path: n for path, n in sent.items() if path.endswith(".tar")}
    assert len(shards) >= NUM_BLOCKS - 4
    assert set(shards.values()) == {1}


def test_dealing_blocks_needs_no_more_memory_than_one_process(parquet: Path) -> None:
    files = sorted(map(str, parquet.glob("*.parquet")))
    # What fits in memory as a whole is not dealt, but kept by each process.
    assert ParquetSource(files).blocks is None
    blocks = ParquetSource(files, cache_bytes=1).blocks
    assert blocks is not None
    np.testing.assert_array_equal(np.unique(blocks), np.arange(NUM_BLOCKS))
