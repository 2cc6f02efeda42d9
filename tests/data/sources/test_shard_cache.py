"""Remote shards: copied whole, once per machine, and waited for."""

import io
import pickle
import socket
import tarfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import CancelledError
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from t2t.data.batches import LoaderOptions, evaluation_batches, open_batches
from t2t.data.crops import CenterCrop
from t2t.data.sources import Source, open_source, shard_cache, storage
from t2t.data.sources.shard_cache import ShardCache
from t2t.errors import LocalError, UserError

NUM_SHARDS = 32
IN_EACH = 6


class Handler(SimpleHTTPRequestHandler):
    """Counts whole files that are sent; ignores ranges, as simple servers do."""

    sent: Counter[str]
    failures: list[int]

    def do_GET(self) -> None:
        if self.failures and self.path.endswith(".tar"):
            self.send_error(self.failures.pop())
            return
        self.sent[self.path] += 1
        super().do_GET()

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, type[Handler]]]:
    folder = tmp_path / "served"
    folder.mkdir()
    for shard in range(NUM_SHARDS):
        write_shard(folder / f"x-{shard:02}.tar", shard)
    (folder / "classes.txt").write_text("cat\ndog\n")
    handler = type("Own", (Handler,), {"sent": Counter(), "failures": []})
    served = partial(handler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), served) as http:
        thread = threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{http.server_address[1]}", handler
        http.shutdown()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("T2T_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "shards"


def write_shard(path: Path, number: int) -> None:
    with tarfile.open(path, "w") as tar:
        for each in range(number * IN_EACH, (number + 1) * IN_EACH):
            image = io.BytesIO()
            Image.new("RGB", (6, 6), (each, each, each)).save(image, "PNG")
            for name, data in (("png", image.getvalue()), ("cls", b"%d" % (each % 2))):
                member = tarfile.TarInfo(f"{each:04}.{name}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))


def opened(address: str) -> Source:
    return open_source(f"{address}/x-{{00..{NUM_SHARDS - 1}}}.tar", "all")


def streamed(source: Source, rank: int, world_size: int, num_steps: int) -> list[int]:
    batches = open_batches(
        source,
        batch_size=16,
        crops=(CenterCrop(size=(6, 6), fraction=1.0),),
        device="cpu",
        rank=rank,
        world_size=world_size,
        loader_options=LoaderOptions(resident=False, num_workers=1),
    )
    seen: list[int] = []
    for batch in batches.steps(0, num_steps):
        assert batch.images[:, 0, 0, 0].tolist() == batch.indices.tolist()
        seen += batch.indices.tolist()
    return seen


def test_each_shard_is_sent_once_an_epoch_over_all_ranks(
    server: tuple[str, type[Handler]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    address, handler = server
    sources = [opened(address) for _ in range(8)]
    handler.sent.clear()
    seen = []
    for rank, source in enumerate(sources):
        # As on eight machines, each with a cache of its own.
        monkeypatch.setenv("T2T_CACHE", str(tmp_path / f"machine{rank}"))
        source._cache = ShardCache()  # type: ignore[attr-defined]
        seen += streamed(source, rank, 8, num_steps=6)
    # The first steps of the next epoch are read ahead.
    assert len(seen) == 96
    assert len(set(seen)) == 96
    shards = Counter({k: n for k, n in handler.sent.items() if k.endswith(".tar")})
    assert max(shards.values()) == 1


def test_the_processes_of_a_machine_share_one_copy(
    server: tuple[str, type[Handler]], cache: Path
) -> None:
    address, handler = server
    source = opened(address)
    copies = [pickle.loads(pickle.dumps(source)) for _ in range(4)]
    handler.sent.clear()
    threads = [threading.Thread(target=each.read, args=(3,)) for each in copies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert handler.sent["/x-00.tar"] == 1
    assert len(list(cache.glob("*.tar"))) == 1


def test_a_whole_evaluation_reads_every_image_once(
    server: tuple[str, type[Handler]],
) -> None:
    address, handler = server
    source = opened(address)
    handler.sent.clear()
    batches = evaluation_batches(
        source,
        batch_size=16,
        crop=CenterCrop(size=(6, 6), fraction=1.0),
        device="cpu",
        loader_options=LoaderOptions(resident=False, num_workers=2),
    )
    seen = np.concatenate([batch.indices[batch.valid].numpy() for batch in batches])
    np.testing.assert_array_equal(seen, np.arange(NUM_SHARDS * IN_EACH))
    assert {handler.sent[f"/x-{n:02}.tar"] for n in range(NUM_SHARDS)} == {1}


def test_the_cache_keeps_to_its_size(
    server: tuple[str, type[Handler]], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, _ = server
    size = (cache.parents[1] / "served" / "x-00.tar").stat().st_size
    monkeypatch.setenv("T2T_SHARD_CACHE_GB", f"{3.5 * size / 1e9:.9f}")
    source = opened(address)
    for shard in range(6):
        assert source.read(shard * IN_EACH)
        assert len(list(cache.glob("*.tar"))) <= 3
    assert source.read(0)  # removed, but still open


def test_a_setting_that_is_no_size(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("much", "-1", "0"):
        monkeypatch.setenv("T2T_SHARD_CACHE_GB", value)
        with pytest.raises(UserError, match="is not a number of gigabytes"):
            ShardCache()


def test_an_outage_is_waited_out(
    server: tuple[str, type[Handler]], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, handler = server
    monkeypatch.setattr(shard_cache, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(shard_cache, "SILENT_SECONDS", 0.0)
    source = opened(address)
    handler.failures += [503, 502, 500]
    said: list[str] = []
    source.fetch_block(0, said.append)
    assert handler.failures == []
    assert len(said) == 1
    assert "x-00.tar cannot be read (50" in said[0]
    assert "waiting up to 10 more minutes for the network" in said[0]
    assert source.read(0)


def test_an_outage_that_lasts_ends_with_one_sentence(
    server: tuple[str, type[Handler]], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, handler = server
    monkeypatch.setattr(shard_cache, "PATIENCE_SECONDS", 0.05)
    monkeypatch.setattr(shard_cache, "FIRST_PAUSE", 0.02)
    monkeypatch.setattr(storage, "PAUSES", (0.01,))
    source = opened(address)
    handler.failures += [503] * 100
    with pytest.raises(LocalError, match=r"x-00\.tar could not be read for .* resume"):
        source.read(0)


def test_reads_that_wait_end_when_they_are_not_needed(
    server: tuple[str, type[Handler]],
) -> None:
    address, handler = server
    source = opened(address)
    handler.failures += [503] * 100
    ended: list[BaseException] = []

    def read() -> None:
        try:
            source.read(0)
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    while len(handler.failures) == 100:
        time.sleep(0.01)
    source.stop_waiting()
    thread.join(5)
    assert not thread.is_alive()
    assert isinstance(ended[0], CancelledError)


def test_a_shard_that_is_gone_is_not_waited_for(
    server: tuple[str, type[Handler]], tmp_path: Path
) -> None:
    address, _ = server
    source = opened(address)
    (tmp_path / "served" / "x-00.tar").unlink()
    started = time.monotonic()
    with pytest.raises(Exception, match=r"x-00\.tar"):
        source.read(0)
    assert time.monotonic() - started < 5


def test_a_server_may_ignore_ranges(
    server: tuple[str, type[Handler]], tmp_path: Path
) -> None:
    address, _ = server
    data = (tmp_path / "served" / "x-00.tar").read_bytes()
    remote = storage.RemoteFile(f"{address}/x-00.tar")
    assert remote.read(512, 100) == data[512:612]
    with pytest.raises(OSError, match="ends before byte"):
        remote.read(len(data) - 1, 2)


def test_a_server_that_does_not_answer_is_no_missing_file(
    server: tuple[str, type[Handler]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "PAUSES", (0.01,))
    url = server[0]
    with pytest.raises(UserError, match=r"^There is no file http.*/y-00\.tar\.$"):
        open_source(f"{url}/y-00.tar", "all")
    with pytest.raises(UserError, match=r"cannot be listed: name its shards, as in"):
        open_source(f"{url}/nowhere/", "all")
    with socket.create_server(("127.0.0.1", 0)) as unused:
        closed = f"http://127.0.0.1:{unused.getsockname()[1]}"
    for path in ("x-00.tar", ""):
        with pytest.raises(UserError, match=r"cannot be .*Cannot connect to host"):
            open_source(f"{closed}/{path}", "all")


def test_a_server_that_starts_late_is_waited_for(
    server: tuple[str, type[Handler]], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = storage.RemoteFile(f"{server[0]}/x-00.tar")
    stamp = file.stamp()
    info, failures = file._system.info, [ConnectionRefusedError("refused")]

    def late(path: str) -> object:
        if failures:
            raise FileNotFoundError(path) from failures.pop()
        return info(path)

    monkeypatch.setattr(storage, "PAUSES", (0.01,))
    monkeypatch.setattr(file._system, "info", late)
    assert file.stamp() == stamp
    assert not failures
