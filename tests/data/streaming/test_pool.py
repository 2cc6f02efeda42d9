"""Worker processes: the same batches as by threads, and nothing left of them."""

import gc
import io
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from t2t.data.batches import LoaderOptions, evaluation_batches, open_batches
from t2t.data.crops import RandomCrop, apply_crop, min_side_for
from t2t.data.decoding import nvjpeg
from t2t.data.decoding.damage import Damage
from t2t.data.decoding.decode import decode
from t2t.data.loader import Loader
from t2t.data.rng import CounterRng
from t2t.data.sampler import Batch
from t2t.data.sources import ArraySource
from t2t.data.sources.base import FileSource, Source
from t2t.data.streaming import stream as stream_module
from t2t.data.streaming.stream import uses_processes
from t2t.data.streaming.stream_batches import StreamBatches
from t2t.errors import UserError
from t2t.ops.ragged import Ragged

pytestmark = pytest.mark.skipif(
    not hasattr(os, "memfd_create"), reason="processes need Linux"
)
NUM = 24
DAMAGED = (5, 17)
CROP = RandomCrop(size=(12, 12))


def encoded(index: int) -> bytes:
    """Every kind of file that workers and decoders treat differently."""
    rng = np.random.default_rng(index)
    size = (40 + index % 5, 30 + 7 * (index % 3))
    if index == 7:  # larger than the block of memory that is taken for it
        size = (12000, 50)
    if index in (13, 20):  # shrunk as they are decoded
        size = (2000, 1500)
    image = Image.fromarray(rng.integers(0, 256, (5, 4, 3), dtype=np.uint8))
    image = image.resize(size, Image.Resampling.BICUBIC)
    exif = Image.Exif()
    exif[0x0112] = 1 + index % 8
    kind, options = "JPEG", {"exif": exif, "progressive": index % 4 == 3}
    if index % 6 == 2:
        kind, options = "PNG", {}
    elif index % 6 == 4:
        image = image.convert("CMYK" if index % 12 == 4 else "L")
    file = io.BytesIO()
    image.save(file, kind, **options)
    data = file.getvalue()
    return data[: len(data) // 2] if index == DAMAGED[0] else data


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> FileSource:
    root = tmp_path_factory.mktemp("images")
    names = [f"{index}.image" for index in range(NUM)]
    for index, name in enumerate(names):
        (root / name).write_bytes(encoded(index))
    (root / names[DAMAGED[1]]).unlink()
    labels = np.arange(NUM, dtype=np.int64) % 3
    return FileSource(root, names, labels, ("a", "b", "c"))


@pytest.fixture(scope="module")
def batches(source: FileSource) -> "StreamBatches":
    """Shared by tests that leave its workers alive: starting them takes seconds."""
    return opened(source)


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many images each call was given that a stand-in for nvJPEG decoded.

    It turns no image upright and refuses those in several scans.
    """
    sizes = []

    def together(
        datas: list[torch.Tensor], mode: str, device: torch.device
    ) -> list[torch.Tensor]:
        sizes.append(len(datas))
        images = []
        for data in datas:
            file = data.numpy().tobytes()
            if b"\xff\xc2" in file:
                raise RuntimeError("several scans")
            with Image.open(io.BytesIO(file)) as image:
                rows = np.array(image.convert(mode))
            images.append(torch.from_numpy(rows).permute(2, 0, 1))
        return images

    decoder = nvjpeg.LibraryDecoder(together, is_upright=False)
    fake = nvjpeg.GpuDecoder("a test's", decoder.borrowed)
    monkeypatch.setattr(nvjpeg, "_gpu_decoder", lambda device: fake)
    monkeypatch.setattr(stream_module, "gpu_decoder_name", lambda device: fake.name)
    return sizes


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    before = files_in_memory()
    yield
    if threads_of_ours() or not files_in_memory() <= before:
        gc.collect()  # slow: searches all objects
    assert threads_of_ours() == []
    if before:
        assert files_in_memory() <= before


def threads_of_ours() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("t2t-")]


def files_in_memory() -> set[str]:
    return set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()


def opened(
    source: Source,
    processes: bool = True,
    nvjpeg: bool = False,
    num_workers: int = 2,
    **options: object,
) -> StreamBatches:
    loader_options = LoaderOptions(
        resident=False,
        num_workers=num_workers,
        processes=processes,
        nvjpeg=nvjpeg,
    )
    defaults = {"batch_size": 8, "crops": (CROP,), "device": "cpu", "seed": 5}
    batches = open_batches(
        source, loader_options=loader_options, **{**defaults, **options}
    )  # type: ignore[arg-type]
    assert isinstance(batches, StreamBatches)
    return batches


def pids(batches: StreamBatches) -> list[int]:
    (pool,) = batches.stream.idle_pools
    return [worker.pid for worker in pool.workers]  # type: ignore[attr-defined]


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that ended and that nobody asked about does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"


def await_all_workers(batches: StreamBatches) -> None:
    until = time.monotonic() + 20
    while not (batches.stream.idle_pools and None not in pids(batches)):
        assert time.monotonic() < until, "a worker has not started"
        list(batches.steps(0, 4))


def await_ends(numbers: list[int], seconds: float = 5.0) -> None:
    until = time.monotonic() + seconds
    while any(map(is_alive, numbers)):
        assert time.monotonic() < until, "a worker is still there"
        time.sleep(0.02)


def assert_same(left: list[Batch], right: list[Batch]) -> None:
    assert len(left) == len(right)
    for one, other in zip(left, right, strict=True):
        for left_tensor, right_tensor in zip(one.tensors, other.tensors, strict=True):
            assert torch.equal(left_tensor, right_tensor)


def test_processes_make_the_batches_that_threads_make(
    source: FileSource, batches: StreamBatches, on_gpu: list[int]
) -> None:
    for by_gpu in (False, True):
        damages = Damage(limit=2), Damage(limit=2)
        wanted = list(opened(source, False, by_gpu, damage=damages[0]).steps(0, 6))
        on_gpu.clear()
        min_side = batches.stream.loader.decoding.min_side
        batches.stream.loader = Loader(source, damage=damages[1], min_side=min_side)
        batches.stream.uses_gpu_decoder = by_gpu
        assert_same(wanted, list(batches.steps(0, 6)))
        assert bool(on_gpu) == by_gpu
        # Now the damage is known, and the workers wait for more.
        assert_same(wanted[2:], list(batches.steps(2, 6)))
        for damage in damages:
            named = sorted(damage.names)
            assert named == sorted(source.name(index) for index in DAMAGED)
        for step, batch in enumerate(wanted):
            assert_right(batch, step, source)


def test_threads_begin_while_processes_start(source: FileSource) -> None:
    wanted = list(opened(source, False).steps(0, 12))
    batches = opened(source)
    batches.stream._threads_first = True
    steps = batches.steps(0, 12)
    seen = [next(steps)]
    assert threads_decode()
    assert_same(wanted, seen + list(steps))
    until = time.monotonic() + 60
    while None in pids(batches) and time.monotonic() < until:
        assert_same(wanted, list(batches.steps(0, 12)))
    steps = batches.steps(0, 12)
    seen = [next(steps)]
    assert not threads_decode()
    assert_same(wanted, seen + list(steps))


def threads_decode() -> bool:
    return any(each.name.startswith("t2t-decode") for each in threading.enumerate())


def test_processes_make_the_views_that_threads_make(source: FileSource) -> None:
    crops = (CROP, CROP, replace(CROP, size=(5, 7)))
    wanted = list(opened(source, processes=False, crops=crops).steps(0, 5))
    assert_same(wanted, list(opened(source, crops=crops).steps(0, 5)))
    assert not torch.equal(wanted[0].views[0], wanted[0].views[1])


def assert_right(batch: Batch, step: int, source: FileSource) -> None:
    """Upright images with the crops that are drawn, whoever decoded them."""
    images = [
        decode(source.read(index), min_side=min_side_for(CROP))
        for index in batch.indices.tolist()
    ]
    rng = CounterRng.of(5, step, batch.keys)
    wanted = apply_crop(CROP, Ragged.from_images(images), rng)
    # Where a large one is shrunk, nvJPEG and Pillow differ by a few levels.
    assert (batch.images.int() - wanted.int()).abs().max() <= 4


def test_a_killed_worker_is_reported_and_others_do_its_work(source: FileSource) -> None:
    wanted = list(opened(source, False).steps(0, 12))
    told: list[str] = []
    batches = opened(source, damage=Damage(warn=told.append))
    await_all_workers(batches)
    told.clear()
    (first, second) = pids(batches)
    steps = batches.steps(0, 12)
    seen = [next(steps)]
    os.kill(first, signal.SIGKILL)
    seen += list(steps)
    assert_same(wanted, seen)
    assert told == [
        f"Worker process {first} died, perhaps for lack of memory; "
        "the other 1 do its work."
    ]
    # Nobody waits for a message that cannot be told.
    batches.stream.idle_pools[0]._warn = warnings.warn  # type: ignore[attr-defined]
    os.kill(second, signal.SIGKILL)
    with pytest.raises(UserWarning, match="it was the last: threads do its work"):
        list(batches.steps(0, 12))
    assert_same(wanted, list(batches.steps(0, 12)))
    assert_same(wanted[3:], list(batches.steps(3, 12)))
    assert len(told) == 1


def test_a_scheduler_that_asks_every_process_to_end_ends_no_worker(
    batches: StreamBatches,
) -> None:
    await_all_workers(batches)
    (pool,) = batches.stream.idle_pools
    wanted = list(batches.steps(0, 3))
    asked = [pool.launcher.pid, *pids(batches)]  # type: ignore[attr-defined]
    for pid in asked:
        os.kill(pid, signal.SIGTERM)
    assert_same(wanted, list(batches.steps(0, 3)))
    assert pids(batches) == asked[1:]


def test_no_image_is_blamed_for_workers_that_had_not_begun_it(
    source: FileSource,
) -> None:
    wanted = list(opened(source, False).steps(0, 1))
    told: list[str] = []
    batches = opened(source, damage=Damage(warn=told.append), num_workers=4)
    await_all_workers(batches)
    told.clear()
    for pid in pids(batches):
        os.kill(pid, signal.SIGSTOP)
    (pool,) = batches.stream.idle_pools
    with ThreadPoolExecutor(1) as executor:
        found = executor.submit(list, batches.steps(0, 1))
        while not found.done():
            for worker in list(pool.workers):  # type: ignore[attr-defined]
                if worker.tasks:
                    with suppress(ProcessLookupError):  # killed the last time
                        os.kill(worker.pid, signal.SIGKILL)
            time.sleep(0.01)
        assert_same(wanted, found.result())
    assert len(told) == 4


def test_closing_early_is_quick_and_leaks_nothing(batches: StreamBatches) -> None:
    wanted = list(batches.steps(4, 8))
    pool = batches.stream.idle_pools[-1]
    num_bytes = pool.arena.num_bytes
    num_files = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        steps = batches.steps(0, 10**6)
        next(steps)
        started = time.perf_counter()
        steps.close()  # type: ignore[attr-defined]
        assert time.perf_counter() - started < 1
    assert_same(wanted, list(batches.steps(4, 8)))
    assert len(os.listdir("/proc/self/fd")) == num_files
    assert pool.arena.num_bytes < 4 * num_bytes


def test_two_iterations_at_once_have_workers_of_their_own(
    batches: StreamBatches,
) -> None:
    wanted = list(batches.steps(0, 6))
    both = zip(batches.steps(0, 6), batches.steps(0, 6), strict=True)
    for one, pair in zip(wanted, both, strict=True):
        for other in pair:
            assert_same([one], [other])
    assert len(batches.stream.idle_pools) == 2


ODD = """
import os, signal, threading
import numpy as np, torch
from t2t.data.decoding.damage import DamagedImage
from t2t.data.sources.base import Source
class OwnError(Exception):
    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")
class Odd(Source):
    classes = ("all",)
    def __init__(self, how):
        self.labels = np.zeros(32, dtype=np.int64)
        self.how, self.home = how, os.getpid()
    def __setstate__(self, state):
        if not state["how"]:
            raise ValueError("no network here")
        self.__dict__.update(state)
    def read(self, index):
        how = self.how.get(index)
        if how == "raises":
            raise LookupError(f"lost at {index}")
        if how == "raises its own":
            raise OwnError("this", "that")
        if how == "is damaged":
            raise DamagedImage(self.name(index), f"lost at {index}, " + 10**5 * "ä")
        if how == "kills" and os.getpid() != self.home:
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.full((3, 4, 4), index, dtype=torch.uint8)
    def name(self, index):
        return f"odd-{index}"
"""


@pytest.fixture
def odd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Source]:
    (tmp_path / "odd_source.py").write_text(ODD)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "odd_source", raising=False)
    import odd_source  # type: ignore[import-not-found]

    return odd_source.Odd  # type: ignore[no-any-return]


def test_what_goes_wrong_in_a_worker_is_raised_here(odd: Callable[..., Source]) -> None:
    told: list[str] = []
    batches = evaluation_batches(
        odd({3: "raises", 9: "raises its own", 17: "kills"}),
        batch_size=8,
        crop=None,
        device="cpu",
        damage=Damage(warn=told.append),
        loader_options=LoaderOptions(resident=False, num_workers=4, processes=True),
    ).batches
    assert isinstance(batches, StreamBatches)
    with pytest.raises(LookupError, match="lost at 3"):
        next(batches.steps(0, 1))
    with pytest.raises(RuntimeError, match="OwnError: this and that"):
        next(batches.steps(1, 2))
    assert told == []
    with pytest.raises(
        UserError, match=r"3 worker processes died while (.*\n)*  odd-17"
    ):
        next(batches.steps(2, 3))
    assert len(told) == 3
    (batch,) = batches.steps(3, 4)
    assert batch.images[:, 0, 0, 0].tolist() == list(range(24, 32))
    left = pids(batches)
    assert [is_alive(pid) for pid in left] == [True]
    del batches
    gc.collect()
    await_ends(left)


def test_a_folder_that_is_gone_stops_nothing(
    odd: Callable[..., Source], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    folder.rmdir()
    told: list[str] = []
    batches = opened(odd({0: ""}), crops=(), damage=Damage(warn=told.append))
    (batch,) = batches.steps(0, 1)
    assert batch.images[:, 0, 0, 0].tolist() == batch.indices.tolist()
    # Some libraries do not start there.
    assert set(told) <= {"Worker processes could not start; using threads."}


def test_where_processes_cannot_start_threads_do_it_and_it_is_said(
    odd: Callable[..., Source],
) -> None:
    told: list[str] = []
    batches = opened(odd({}), crops=(), damage=Damage(warn=told.append))
    (batch,) = batches.steps(0, 1)
    assert batch.images[:, 0, 0, 0].tolist() == batch.indices.tolist()
    reason = "ValueError: no network here"
    assert told == [f"Worker processes could not start ({reason}); using threads."]


def test_what_ended_all_workers_is_not_tried_here(odd: Callable[..., Source]) -> None:
    batches = opened(odd({17: "kills"}), crops=(), damage=Damage(warn=str))
    with pytest.raises(
        UserError, match=r"2 worker processes died while (.*\n)*  odd-17"
    ):
        list(batches.steps(0, 4))


def test_the_reason_of_damage_may_have_any_length(odd: Callable[..., Source]) -> None:
    damage = Damage()
    batches = opened(odd({3: "is damaged", 4: "is damaged"}), crops=(), damage=damage)
    seen = [index for batch in batches.steps(0, 4) for index in batch.indices.tolist()]
    assert sorted(seen) == sorted([*range(3), 5, 5, *range(5, 32)])
    assert sorted(damage.names) == ["odd-3", "odd-4"]


def test_where_no_process_can_be_started_threads_do_it_and_it_is_said(
    source: FileSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise BlockingIOError("Resource temporarily unavailable")

    wanted = list(opened(source, False).steps(0, 3))
    told: list[str] = []
    batches = opened(source, damage=Damage(warn=told.append))
    monkeypatch.setattr(subprocess, "Popen", refuse)
    assert_same(wanted, list(batches.steps(0, 3)))
    reason = "Resource temporarily unavailable"
    assert f"Worker processes could not start ({reason}); using threads." in told


class Local(ArraySource):
    """A source with something that cannot be pickled."""

    is_in_memory = False  # type: ignore[assignment]

    def __init__(self) -> None:
        images = torch.zeros(4, 3, 2, 2, dtype=torch.uint8)
        super().__init__(images, [0] * 4, ("all",), "local")
        self.on_read = lambda index: None


class Tied(ArraySource):
    """A source that refuses to be pickled in its own way."""

    is_in_memory = False  # type: ignore[assignment]

    def __getstate__(self) -> dict[str, object]:
        raise RuntimeError("an open database stays where it is")


def test_only_a_cuda_device_and_a_portable_source_call_for_processes(
    source: FileSource,
) -> None:
    cuda, cpu = torch.device("cuda"), torch.device("cpu")
    files = Loader(source)
    assert uses_processes(files, cuda, None) == (True, "processes")
    assert uses_processes(files, cuda, False) == (False, "threads")
    assert uses_processes(files, cpu, None) == (False, "threads")
    assert uses_processes(files, cpu, True) == (True, "processes")
    array = ArraySource(torch.zeros(4, 3, 2, 2).byte(), [0] * 4, ("all",), "array")
    yes, words = uses_processes(Loader(array), cuda, None)
    assert not yes
    assert "keeps in memory" in words
    yes, words = uses_processes(Loader(Local()), cuda, None)
    assert not yes
    assert "cannot be sent to processes" in words
    tied = Tied(torch.zeros(4, 3, 2, 2).byte(), [0] * 4, ("all",), "tied")
    yes, words = uses_processes(Loader(tied), cuda, None)
    assert not yes
    assert "an open database stays where it is" in words
    with pytest.raises(UserError, match="processes=True is not possible"):
        uses_processes(Loader(Local()), cuda, True)


@pytest.mark.cuda
@pytest.mark.parametrize("nvjpeg", [False, True])
def test_a_gpu_gets_the_same_from_processes_as_from_threads(
    source: FileSource, nvjpeg: bool
) -> None:
    options = {"device": "cuda", "nvjpeg": nvjpeg}
    wanted = list(opened(source, False, **options).steps(0, 9))  # type: ignore[arg-type]
    found = opened(source, True, **options)  # type: ignore[arg-type]
    assert_same(wanted, list(found.steps(0, 9)))
    assert_same(wanted[3:], list(found.steps(3, 9)))


ALONE = """
import os, sys, time
import numpy as np
from pathlib import Path
from t2t.data.batches import LoaderOptions, open_batches
from t2t.data.loader import Loader
from t2t.data.sources.base import FileSource
from t2t.data.streaming.stream import uses_processes
import torch
class Mine(FileSource):
    pass
if __name__ == "__main__":
    root = Path(sys.argv[1])
    given = (root, ["0.image", "1.image"], np.zeros(2, np.int64), ("all",))
    loader = Loader(Mine(*given))
    words = uses_processes(loader, torch.device("cuda"), None)[1]
    assert "Mine is defined in the script itself" in words
    options = LoaderOptions(resident=False, num_workers=2, processes=True)
    from t2t.data.crops import RandomCrop
    batches = open_batches(FileSource(*given), batch_size=2,
        crops=(RandomCrop(size=(8, 8)),), device="cpu",
        loader_options=options)
    list(batches.steps(0, 20))
    (pool,) = batches.stream.idle_pools
    steps = batches.steps(0, 10**6)
    next(steps)
    if os.fork() == 0:  # a process that holds all that this one had open
        time.sleep(60)
    print(pool.launcher.pid, *(worker.pid for worker in pool.workers), flush=True)
    for _ in steps:
        pass
"""


def test_workers_end_with_a_killed_parent(source: FileSource) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", ALONE, source.root],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with process:
        assert process.stdout is not None
        numbers = [int(word) for word in process.stdout.readline().split()]
        try:
            assert len(numbers) == 3
            assert all(map(is_alive, numbers))
            process.kill()
            process.wait()
            await_ends(numbers)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
