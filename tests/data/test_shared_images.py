"""The processes of a machine decode a set once, into memory that they share."""

import io
import multiprocessing
import os
import pickle
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from t2t.data import batches, shared_images
from t2t.data.batches import LoaderOptions, open_batches
from t2t.data.crops import CenterCrop, RandomCrop
from t2t.data.decoding.damage import Damage
from t2t.data.loader import Loader
from t2t.data.resident import DecodingProgress, ResidentBatches
from t2t.data.shared_images import Peers, SharedImages, TooLargeToKeep
from t2t.data.sources.base import Source
from t2t.errors import LocalError, UserError
from t2t.ops.ragged import Ragged

NUM_IMAGES = 200
KEPT = LoaderOptions(resident=True, num_workers=1)
CROPS = (RandomCrop(size=(12, 12)),)
SECONDS = 30.0


class Pictures(Source):
    """Pictures of many sizes; notes which are read."""

    classes = ("even", "odd")

    def __init__(self, damaged: tuple[int, ...] = ()) -> None:
        self.labels = np.arange(NUM_IMAGES, dtype=np.int64) % 2
        self.damaged = damaged
        self.num_read: Counter[int] = Counter()

    def read(self, index: int) -> bytes:
        self.num_read[index] += 1
        if index in self.damaged:
            return b"no image"
        rng = np.random.default_rng(index)
        pixels = rng.integers(0, 256, (14 + index % 5, 15 + index % 7, 3))
        file = io.BytesIO()
        Image.fromarray(pixels.astype(np.uint8)).save(file, "PNG")
        return file.getvalue()

    def name(self, index: int) -> str:
        return f"picture-{index}"


class Broken(Pictures):
    """Cannot be read from an image on, and not for the image's fault."""

    def read(self, index: int) -> bytes:
        if index >= 150:
            raise UserError("The disk is gone.")
        return super().read(index)


class Deadly(Pictures):
    """Kills the process that reads an image late in the set."""

    def read(self, index: int) -> bytes:
        if index == 190:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().read(index)


def gathering(folder: Path, rank: int, size: int) -> Callable[[Any], list[Any]]:
    """Gathers values of processes through files."""
    calls = iter(range(1000))

    def gather(value: Any) -> list[Any]:
        number = next(calls)
        part = folder / f"{number}-{rank}.part"
        part.write_bytes(pickle.dumps(value))
        part.rename(folder / f"{number}-{rank}")
        found = []
        until = time.monotonic() + SECONDS
        for other in range(size):
            path = folder / f"{number}-{other}"
            while not path.exists():
                if time.monotonic() > until:
                    raise RuntimeError("gloo: connection closed by peer")
                time.sleep(0.002)
            found.append(pickle.loads(path.read_bytes()))
        return found

    return gather


Work = Callable[[Peers], Any]


def in_processes(folder: Path, size: int, work: Work, per_machine: int = 0) -> Any:
    """What each of several forked processes returns, or its error."""
    context = multiprocessing.get_context("fork")
    per_machine = per_machine or size

    def run(rank: int) -> None:
        gather = gathering(folder, rank, size)
        peers = Peers(rank, rank % per_machine, per_machine, gather)
        try:
            result = work(peers)
        except Exception as error:
            result = f"{type(error).__name__}: {error}"
        (folder / f"result-{rank}").write_bytes(pickle.dumps(result))

    processes = [context.Process(target=run, args=(rank,)) for rank in range(size)]
    for each in processes:
        each.start()
    for each in processes:
        each.join(2 * SECONDS)
        assert not each.is_alive()
    files = [folder / f"result-{rank}" for rank in range(size)]
    return [pickle.loads(f.read_bytes()) if f.exists() else None for f in files]


def batches_of(source: Source, peers: Peers | None, **options: Any) -> ResidentBatches:
    given = {"batch_size": 8, "crops": CROPS, "device": "cpu", "seed": 3}
    found = open_batches(
        source, loader_options=KEPT, peers=peers, **{**given, **options}
    )
    assert isinstance(found, ResidentBatches)
    return found


def shown(kept: ResidentBatches) -> list[list[np.ndarray]]:
    return [
        [tensor.numpy().copy() for tensor in batch.tensors]
        for batch in kept.steps(0, 12)
    ]


def assert_same(found: list[list[np.ndarray]], wanted: list[list[np.ndarray]]) -> None:
    for ours, theirs in zip(found, wanted, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(("size", "per_machine"), [(8, 8), (4, 2), (2, 1)])
def test_each_image_is_decoded_once_on_a_machine(
    size: int, per_machine: int, tmp_path: Path
) -> None:
    def work(peers: Peers) -> Any:
        source = Pictures()
        found = shown(batches_of(source, peers))
        return found, source.num_read

    results = in_processes(tmp_path, size, work, per_machine)
    wanted = shown(batches_of(Pictures(), None))
    for found, _ in results:
        assert_same(found, wanted)
    for first in range(0, size, per_machine):
        reads = Counter()
        for _, num_read in results[first : first + per_machine]:
            reads += num_read
        # Every process also looks at the first image, for its size and its format.
        assert {reads[index] for index in range(1, NUM_IMAGES)} == {1}


def test_pixels_are_held_once(tmp_path: Path) -> None:
    def work(peers: Peers) -> Any:
        pixels = batches_of(Pictures(), peers).resident.images.pixels
        (inode,) = {
            line.split()[4]
            for line in Path("/proc/self/maps").read_text().splitlines()
            if in_line(pixels.data_ptr(), line)
        }
        peers.gather(None)  # until all have looked
        pixels[:] = 0  # its own copy
        return inode

    assert len(set(in_processes(tmp_path, 3, work))) == 1


def in_line(address: int, line: str) -> bool:
    start, end = (int(each, 16) for each in line.split()[0].split("-"))
    return start <= address < end


def test_a_process_changes_no_pixels_of_others(tmp_path: Path) -> None:
    def work(peers: Peers) -> Any:
        kept = batches_of(Pictures(), peers)
        if peers.rank == 0:
            kept.resident.images.pixels[:] = 0
        peers.gather(None)
        return shown(kept)

    _, found = in_processes(tmp_path, 2, work)
    assert_same(found, shown(batches_of(Pictures(), None)))


def test_damaged_images_are_known_to_all(tmp_path: Path) -> None:
    def work(peers: Peers) -> Any:
        damage = Damage(10, lambda sentence: None)
        kept = batches_of(Pictures((40, 160)), peers, damage=damage)
        return sorted(damage.names), kept.resident.loaded[[40, 160]].tolist()

    results = in_processes(tmp_path, 3, work)
    assert results == [(["picture-160", "picture-40"], [41, 161])] * 3


def test_an_error_in_one_process_ends_all_with_its_sentence(tmp_path: Path) -> None:
    results = in_processes(tmp_path, 3, lambda peers: batches_of(Broken(), peers))
    assert results[2] == "UserError: The disk is gone."
    expected = (
        "LocalError: Process 2 could not decode its share of the images: "
        "The disk is gone."
    )
    assert results[:2] == [expected] * 2


def test_no_process_waits_for_one_that_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{__name__}.SECONDS", 2.0)
    results = in_processes(tmp_path, 2, lambda peers: batches_of(Deadly(), peers))
    assert results == ["RuntimeError: gloo: connection closed by peer", None]


def test_what_is_too_large_together_is_streamed_by_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "decoded_bytes", lambda loader: 0)
    monkeypatch.setattr(batches, "free_bytes", lambda device: 150_000)

    def work(peers: Peers) -> Any:
        given: Any = {"batch_size": 8, "crops": CROPS, "device": "cpu"}
        options = LoaderOptions(num_workers=1)
        opened = open_batches(Pictures(), loader_options=options, peers=peers, **given)
        return opened.description

    for each in in_processes(tmp_path, 2, work):
        assert "streamed to cpu" in each
        assert "more than 75 kB, a quarter of free memory" in each


def test_the_least_free_memory_decides_for_all(tmp_path: Path) -> None:
    def work(peers: Peers) -> Any:
        batches.free_bytes = lambda device: 1 << 30 if peers.rank else 0
        given = (Loader(Pictures()), torch.device("cpu"), LoaderOptions())
        resident, reason, limit = batches._is_resident(*given, peers)
        assert reason.endswith("more than 0 bytes, a quarter of free memory")
        return resident, limit.max_bytes

    assert in_processes(tmp_path, 2, work) == [(False, 0)] * 2


@pytest.mark.parametrize(
    ("on_gpu", "on_host", "limit"),
    [
        (1 << 10, 1 << 30, "more than 256 bytes, a quarter of the GPU's free memory"),
        (
            1 << 30,
            1 << 10,
            "more than 1.02 kB, half of the machine's free memory, through which "
            "images reach its GPUs",
        ),
    ],
)
def test_the_reason_to_stream_names_the_memory_that_is_too_small(
    on_gpu: int, on_host: int, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "free_bytes", lambda device: on_gpu)
    monkeypatch.setattr(batches, "free_memory", lambda: on_host)
    peers = Peers(0, 0, 2, lambda value: [value] * 2)
    device, options = torch.device("cuda"), LoaderOptions()
    resident, reason, _ = batches._is_resident(
        Loader(Pictures()), device, options, peers
    )
    assert not resident
    assert reason.endswith(limit)


def test_the_reason_to_stream_names_the_share_of_a_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "decoded_bytes", lambda loader: 0)
    monkeypatch.setattr(batches, "free_bytes", lambda device: 150_000)

    def work(peers: Peers) -> Any:
        def unshared(*arguments: object) -> None:
            raise OSError(38, "Function not implemented")

        SharedImages.create = unshared  # type: ignore[assignment, method-assign]
        options = LoaderOptions(num_workers=1)
        given: Any = {"batch_size": 8, "crops": CROPS, "device": "cpu"}
        return open_batches(
            Pictures(), loader_options=options, peers=peers, **given
        ).description

    expected = "more than 37.5 kB, one process's share of a quarter of free memory"
    for each in in_processes(tmp_path, 2, work):
        assert each.endswith(expected)


def test_processes_that_cannot_share_decode_for_themselves(tmp_path: Path) -> None:
    def work(peers: Peers) -> Any:
        if peers.rank == 1:  # as in another container

            def elsewhere(*arguments: object) -> None:
                raise OSError(13, "Permission denied")

            SharedImages.open = elsewhere  # type: ignore[assignment, method-assign]
        source = Pictures()
        found = shown(batches_of(source, peers))
        return found, min(source.num_read[index] for index in range(NUM_IMAGES))

    wanted = shown(batches_of(Pictures(), None))
    for found, least in in_processes(tmp_path, 2, work):
        assert least == 1
        assert_same(found, wanted)


def test_memory_that_cannot_be_shared_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def unshared(name: str) -> int:
        raise OSError(38, "Function not implemented")

    caplog.set_level("DEBUG", "t2t")
    monkeypatch.setattr(os, "memfd_create", unshared)
    peers = Peers(0, 0, 2, lambda value: [value] * 2)
    assert shared_images.share_memory(peers, 3) is None
    (sentence,) = caplog.messages
    assert sentence == (
        "Processes of this machine cannot share memory ([Errno 38] Function not "
        "implemented): each decodes all images."
    )


def test_progress_counts_the_images_of_all(tmp_path: Path) -> None:
    def work(peers: Peers) -> Any:
        progress = DecodingProgress()
        assert progress() == ""
        batches_of(Pictures(), peers, progress=progress)
        return progress()

    assert in_processes(tmp_path, 4, work) == ["(200 decoded)"] * 4
    progress = DecodingProgress()
    batches_of(Pictures(), None, progress=progress, crops=(CenterCrop(size=(9, 9)),))
    assert progress() == "(200 decoded)"


def test_a_file_of_another_process_is_not_mistaken_for_ours() -> None:
    ours = SharedImages.create(4, 1)
    path, token = ours.address
    assert SharedImages.open((path, token), 4, 1).num_bytes == 0
    with pytest.raises(OSError, match="another file"):
        SharedImages.open((path, bytes(16)), 4, 1)


def test_memory_that_is_full_means_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = SharedImages.create(1, 1)
    image = Ragged.from_images([torch.ones(3, 4, 5, dtype=torch.uint8)])

    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shared_images.os, "posix_fallocate", full)
    with pytest.raises(TooLargeToKeep) as error:
        shared.append(0, range(1), image, np.array([0]), 1e9)
    assert error.value.limit == "all memory that the system gives to share"
    assert shared.num_bytes == shared.num_decoded == 0
    monkeypatch.setattr(shared_images, "half_of_all_memory", lambda: 10)
    with pytest.raises(TooLargeToKeep) as error:
        shared.append(0, range(1), image, np.array([0]), 1e9)
    assert (error.value.max_bytes, error.value.limit) == (
        10,
        "half of this machine's memory",
    )


def test_errors_of_other_processes_are_named() -> None:
    peers = Peers(0, 0, 2, lambda about: [about, ("failed", "No.")])
    with pytest.raises(LocalError, match=r"Process 1 could not decode .*: No\."):
        shared_images.raise_together(peers, shared_images.Stopped())
    peers = Peers(0, 0, 2, lambda about: [about, ("large", (5, "half"))])
    with pytest.raises(TooLargeToKeep) as error:
        shared_images.raise_together(peers, None)
    assert (error.value.max_bytes, error.value.limit) == (5, "half")
