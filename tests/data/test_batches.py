"""Batches: the same for (seed, step), whoever decodes and however they are kept."""

import gc
import io
import math
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from t2t.data import batches as batches_module
from t2t.data import crops as crops_module
from t2t.data import resident as resident_module
from t2t.data.batches import Batches, LoaderOptions, evaluation_batches, open_batches
from t2t.data.crops import CenterCrop, RandomCrop
from t2t.data.decoding import decode, nvjpeg
from t2t.data.decoding.damage import Damage
from t2t.data.loader import Loader
from t2t.data.sampler import Batch
from t2t.data.sources.base import Source
from t2t.data.streaming import image_reader
from t2t.data.streaming import stream as stream_module
from t2t.errors import UserError
from t2t.ops.ragged import Ragged

RANDOM = RandomCrop(size=(12, 12))


class Pictures(Source):
    """Encoded images of many sizes whose mean grey level tells their index."""

    def __init__(
        self,
        num: int = 20,
        damaged: tuple[int, ...] = (),
        kind: str = "PNG",
        size: tuple[int, int] | None = None,
    ) -> None:
        self.classes = ("even", "odd")
        self.labels = np.arange(num, dtype=np.int64) % 2
        self.on_read: Callable[[int], None] = lambda index: None
        self.kind = kind
        self.size = size
        self._datas = [
            b"no image" if index in damaged else self._encoded(index)
            for index in range(num)
        ]

    def _encoded(self, index: int) -> bytes:
        rng = np.random.default_rng(index)
        height, width = self.size or (20 + index % 5, 24 - index % 7)
        pixels = rng.integers(-4, 5, (height, width, 3)) + 10 + 10 * index
        file = io.BytesIO()
        Image.fromarray(pixels.astype(np.uint8)).save(file, self.kind)
        return file.getvalue()

    def read(self, index: int) -> bytes:
        self.on_read(index)
        return self._datas[index]

    def name(self, index: int) -> str:
        return f"picture-{index}"


class Squares(Source):
    """Decoded images of one size, all pixels equal to the index."""

    def __init__(self, num: int = 20) -> None:
        self.classes = ("all",)
        self.labels = np.arange(num, dtype=np.int64)

    def read(self, index: int) -> torch.Tensor:
        return torch.full((1, 4, 6), index, dtype=torch.uint8)

    def name(self, index: int) -> str:
        return f"square-{index}"


def stream(source: Source, num_workers: int = 2, **options: object) -> Batches:
    return opened(
        source, LoaderOptions(resident=False, num_workers=num_workers), **options
    )


def resident(source: Source, **options: object) -> Batches:
    return opened(source, LoaderOptions(resident=True, num_workers=2), **options)


def opened(source: Source, loader_options: LoaderOptions, **options: object) -> Batches:
    defaults = {"batch_size": 6, "crops": (RANDOM,), "device": "cpu", "seed": 5}
    return open_batches(
        source, loader_options=loader_options, **{**defaults, **options}
    )  # type: ignore[arg-type]


def assert_same(left: list[Batch], right: list[Batch]) -> None:
    assert len(left) == len(right)
    for one, other in zip(left, right, strict=True):
        for left_tensor, right_tensor in zip(one.tensors, other.tensors, strict=True):
            assert torch.equal(left_tensor, right_tensor)


def cat(first: Batch, second: Batch) -> Batch:
    """The batch of two ranks."""
    pairs = zip(first.tensors, second.tensors, strict=True)
    tensors = [torch.cat(pair) for pair in pairs]
    num_views = len(first.views)
    return Batch(tuple(tensors[:num_views]), *tensors[num_views:])


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    assert [t.name for t in threading.enumerate() if t.name.startswith("t2t-")] == []


@pytest.mark.parametrize("make", [stream, resident])
def test_batches_hold_the_right_images_with_their_labels(
    make: Callable[..., Batches],
) -> None:
    for batch in make(Pictures()).steps(0, 5):
        assert batch.images.shape == (6, 3, 12, 12)
        assert batch.images.dtype == torch.uint8
        means = batch.images.float().mean((1, 2, 3))
        assert ((means - 10) / 10).round().long().tolist() == batch.indices.tolist()
        assert (batch.labels == batch.indices % 2).all()
        assert batch.valid.all()


def test_a_source_is_decoded_once_and_its_images_go_with_it() -> None:
    source = Pictures()
    first = list(resident(source).steps(0, 7))
    (grey,) = resident(source, channels=1).steps(0, 1)
    assert grey.images.shape == (6, 1, 12, 12)
    read: list[int] = []
    source.on_read = read.append
    batches = resident(source)
    assert_same(first, list(batches.steps(0, 7)))
    assert read == []
    images = weakref.ref(batches.resident)  # type: ignore[attr-defined]
    del source, batches
    gc.collect()
    assert images() is None


def test_workers_and_keeping_change_nothing() -> None:
    one = list(stream(Pictures(), num_workers=1).steps(0, 7))
    many = list(stream(Pictures(), num_workers=5).steps(0, 7))
    kept = list(resident(Pictures()).steps(0, 7))
    assert_same(one, many)
    assert_same(one, kept)


@pytest.mark.parametrize("make", [stream, resident])
def test_starting_later_gives_the_later_batches(make: Callable[..., Batches]) -> None:
    batches = make(Pictures())
    whole = list(batches.steps(0, 9))
    assert_same(whole[4:], list(batches.steps(4, 9)))


def test_two_ranks_together_see_what_one_sees() -> None:
    alone = list(stream(Pictures()).steps(2, 4))
    ranks = [
        list(stream(Pictures(), rank=rank, world_size=2).steps(2, 4))
        for rank in range(2)
    ]
    together = [cat(*both) for both in zip(*ranks, strict=True)]
    assert_same(alone, together)


@pytest.mark.parametrize("make", [stream, resident])
def test_every_view_has_draws_of_its_own_and_the_first_those_of_one_view(
    make: Callable[..., Batches],
) -> None:
    small = replace(RANDOM, size=(6, 4))
    alone = list(make(Pictures()).steps(0, 4))
    batches = make(Pictures(), crops=(RANDOM, RANDOM, small))
    several = list(batches.steps(0, 4))
    for one, other in zip(alone, several, strict=True):
        assert torch.equal(one.images, other.images)
        assert other.images is other.views[0]
        assert not torch.equal(other.views[0], other.views[1])
        assert [view.shape[2:] for view in other.views] == [(12, 12), (12, 12), (6, 4)]
    assert_same(several[2:], list(batches.steps(2, 4)))
    ranks = [
        list(make(Pictures(), crops=batches.crops, rank=rank, world_size=2).steps(0, 4))  # type: ignore[attr-defined]
        for rank in range(2)
    ]
    assert_same(several, [cat(*both) for both in zip(*ranks, strict=True)])


@pytest.mark.parametrize("make", [stream, resident])
def test_equal_crops_that_draw_nothing_are_made_once(
    make: Callable[..., Batches],
) -> None:
    crop, other = CenterCrop(size=(12, 12)), CenterCrop(size=(6, 6))
    (batch,) = make(Pictures(), crops=(crop, other, crop)).steps(0, 1)
    assert batch.views[2] is batch.views[0]
    assert batch.views[1].shape == (6, 3, 6, 6)


@pytest.mark.parametrize("make", [stream, resident])
@pytest.mark.parametrize("kind", ["array", "JPEG", "PNG"])
def test_images_of_the_crops_size_are_not_resized(
    make: Callable[..., Batches], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = (4, 6)
    source = Squares() if kind == "array" else Pictures(kind=kind, size=size)
    channels = 1 if kind == "array" else 3
    crop = CenterCrop(size=size, fraction=1.0)
    with monkeypatch.context() as patch:
        patch.setattr(CenterCrop, "keeps_its_size", False)
        batches = make(source, crops=(crop,), channels=channels)
        resized = list(batches.steps(0, 3))

    def refuse(*given: object) -> None:
        raise AssertionError("was resized")

    monkeypatch.setattr(crops_module, "crop_resize", refuse)
    batches = make(source, crops=(crop, crop), channels=channels)
    unchanged = list(batches.steps(0, 3))
    assert_same(resized, [batch._replace(views=batch.views[:1]) for batch in unchanged])
    assert all(torch.equal(*batch.views) for batch in unchanged)
    larger = replace(crop, fraction=0.5)
    with pytest.raises(AssertionError, match="was resized"):
        next(make(source, crops=(larger,), channels=channels).steps(0, 1))


def test_another_seed_or_step_gives_another_crop_of_the_same_image() -> None:
    source = Pictures(num=6)
    first, second = stream(source).steps(0, 2)
    assert sorted(first.indices.tolist()) == sorted(second.indices.tolist())
    order = first.indices.argsort(), second.indices.argsort()
    assert not torch.equal(first.images[order[0]], second.images[order[1]])


def test_repeats_of_an_image_are_cropped_differently() -> None:
    (batch,) = stream(Pictures(), repeats=3).steps(0, 1)
    assert torch.equal(batch.indices[:2], batch.indices[2:4])
    assert len(batch.keys.unique()) == 6
    assert not torch.equal(batch.images[:2], batch.images[2:4])


@pytest.mark.parametrize("make", [stream, resident])
def test_images_of_one_size_need_no_crop(make: Callable[..., Batches]) -> None:
    for batch in make(Squares(), crops=(), channels=1).steps(0, 3):
        assert batch.images.shape == (6, 1, 4, 6)
        assert batch.images[:, 0, 0, 0].tolist() == batch.indices.tolist()


@pytest.mark.parametrize("make", [stream, resident])
def test_images_of_many_sizes_need_one(make: Callable[..., Batches]) -> None:
    with pytest.raises(UserError, match="different sizes, such as"):
        next(make(Pictures(), crops=()).steps(0, 1))


@pytest.mark.parametrize("make", [stream, resident])
def test_the_next_whole_image_stands_in_for_a_damaged_one(
    make: Callable[..., Batches],
) -> None:
    damage = Damage(limit=5)
    batches = make(Pictures(damaged=(3, 4, 19)), damage=damage)
    again = make(Pictures(damaged=(3, 4, 19)))
    seen = list(batches.steps(0, 6))
    # The second time the damage is known from the start.
    assert_same(seen, list(batches.steps(0, 6)))
    assert_same(seen[2:], list(again.steps(2, 6)))
    assert sorted(damage.names) == ["picture-19", "picture-3", "picture-4"]
    shown = torch.cat([batch.indices for batch in seen])
    keys = torch.cat([batch.keys for batch in seen])
    assert (shown[(keys == 3) | (keys == 4)] == 5).all()
    assert (shown[keys == 19] == 0).all()
    means = torch.cat([batch.images for batch in seen]).float().mean((1, 2, 3))
    assert ((means - 10) / 10).round().long().tolist() == shown.tolist()
    labels = torch.cat([batch.labels for batch in seen])
    assert (labels == shown % 2).all()


@pytest.mark.parametrize("make", [stream, resident])
def test_too_much_damage_stops_with_the_names(make: Callable[..., Batches]) -> None:
    source = Pictures(damaged=tuple(range(2, 14, 2)))
    with pytest.raises(UserError, match=r"picture-\d+"):
        list(make(source, damage=Damage(limit=2)).steps(0, 6))


def test_a_search_for_a_stand_in_ends_where_too_many_are_damaged() -> None:
    source = Pictures(damaged=tuple(range(2, 18)))
    read: list[int] = []
    source.on_read = read.append
    with pytest.raises(UserError, match="4 images cannot be read and 3 may be"):
        Loader(source, damage=Damage(limit=3)).load(2)
    assert read == [2, 3, 4, 5]


def test_damage_that_is_known_is_not_read_again() -> None:
    source = Pictures(damaged=(3, 4, 19))
    batches = stream(source)
    seen = list(batches.steps(0, 6))
    read: list[int] = []
    source.on_read = read.append
    assert_same(seen, list(batches.steps(0, 6)))
    assert not {3, 4, 19} & set(read)


class Blocks(Squares):
    """The same, best read five at a time."""

    @property
    def blocks(self) -> np.ndarray:
        return np.arange(len(self)) // 5


def test_a_source_of_blocks_is_read_block_by_block() -> None:
    batches = stream(Blocks(), batch_size=5, crops=(), channels=1)
    for batch in batches.steps(0, 8):
        assert len({index // 5 for index in batch.indices.tolist()}) == 1


def test_a_source_without_one_whole_image_is_refused() -> None:
    source = Pictures(num=6, damaged=tuple(range(6)))
    with pytest.raises(UserError, match="None of the 6 images can be read"):
        next(stream(source).steps(0, 1))


@pytest.mark.parametrize("world_size", [1, 2])
def test_evaluation_counts_every_image_once(world_size: int) -> None:
    seen = []
    for rank in range(world_size):
        batches = evaluation_batches(
            Pictures(damaged=(7,)),
            batch_size=6,
            crop=CenterCrop(size=(12, 12)),
            device="cpu",
            rank=rank,
            world_size=world_size,
            loader_options=LoaderOptions(resident=False, num_workers=2),
        )
        assert len(batches) == 4
        for batch in batches:
            assert len(batch.images) == 6 // world_size
            seen += batch.indices[batch.valid].tolist()
    assert sorted(seen) == [index for index in range(20) if index != 7]


class LostNetworkError(Exception):
    """What a test's source raises."""


def test_a_readers_exception_arrives_as_it_is_after_the_batches_before() -> None:
    source = Pictures()
    batches = stream(source)
    bad = int(batches.stream.sampler.batch_indices(2).indices[0])  # type: ignore[attr-defined]

    def fail(index: int) -> None:
        if index == bad:
            raise LostNetworkError(f"lost at {index}")

    source.on_read = fail
    steps = batches.steps(0, 6)
    next(steps)
    next(steps)
    with pytest.raises(LostNetworkError, match=f"lost at {bad}"):
        next(steps)


@pytest.mark.parametrize("interrupted", [False, True])
def test_closing_early_ends_all_threads_soon(interrupted: bool) -> None:
    source = Pictures()
    batches = stream(source, num_workers=1)
    steps = batches.steps(0, 1000)
    next(steps)
    source.on_read = lambda index: time.sleep(0.02)
    started = time.perf_counter()
    if interrupted:
        with pytest.raises(KeyboardInterrupt):
            steps.throw(KeyboardInterrupt)  # type: ignore[attr-defined]
    else:
        steps.close()  # type: ignore[attr-defined]
    assert time.perf_counter() - started < 1


INTERRUPTED = """
import sys, time
import numpy as np, torch
from t2t.data.batches import LoaderOptions, open_batches
from t2t.data.sources.base import Source
class Slow(Source):
    classes, labels = ("all",), np.zeros(8, dtype=np.int64)
    def read(self, index):
        time.sleep(0.05)
        return torch.zeros(3, 4, 4, dtype=torch.uint8)
    def name(self, index):
        return "slow"
options = LoaderOptions(resident=False, num_workers=2)
batches = open_batches(
    Slow(), batch_size=8, crops=(), device="cpu", loader_options=options
)
try:
    for number, batch in enumerate(batches.steps(0, 10**6)):
        print(number, flush=True)
except (KeyboardInterrupt, RuntimeError) as error:
    # An interrupt within one of Python's own locks can come out as a RuntimeError.
    interrupted = isinstance(error.__context__ or error, KeyboardInterrupt)
    sys.exit(130 if interrupted else 1)
"""


def test_ctrl_c_ends_the_process_soon() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED], stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "0\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 130


def test_small_sets_are_kept_and_large_ones_streamed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loader_options = LoaderOptions(num_workers=2)
    kept = opened(Pictures(), loader_options)
    assert kept.description.startswith("20 images decoded once and kept on cpu")
    many = Loader(Squares(64), channels=1)
    assert batches_module.decoded_bytes(many) == 64 * 4 * 6
    monkeypatch.setattr(batches_module, "free_bytes", lambda device: 1000)
    streamed = opened(Pictures(), loader_options)
    assert "20 images streamed to cpu, decoded by 2 threads" in streamed.description
    assert "more than 250 bytes, a quarter of free memory" in streamed.description
    assert_same(list(kept.steps(0, 2)), list(streamed.steps(0, 2)))


@pytest.mark.parametrize("nvjpeg", [False, True])
def test_a_large_image_among_small_ones_ends_the_keeping(
    nvjpeg: bool, decoded_together: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches_module, "_NUM_PROBED", 2)
    monkeypatch.setattr(batches_module, "free_bytes", lambda device: 400_000)
    loader_options = LoaderOptions(num_workers=2, nvjpeg=nvjpeg)
    source = Pictures(kind="JPEG")
    assert "kept on cpu" in opened(source, loader_options).description
    file = io.BytesIO()
    Image.new("RGB", (400, 300)).save(file, "JPEG")
    large = Pictures(kind="JPEG")
    large._datas[7] = file.getvalue()
    batches = opened(large, loader_options)
    assert "20 images streamed to cpu" in batches.description
    assert "more than 100 kB, a quarter of free memory" in batches.description
    assert_same(list(batches.steps(0, 2)), list(resident(large).steps(0, 2)))


@pytest.mark.parametrize("given", [{"num_workers": 0}, {"num_ahead": 0}])
def test_impossible_loader_options_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=next(iter(given))):
        LoaderOptions(**given)


def test_an_impossible_batch_is_refused_before_reading() -> None:
    source = Pictures()

    def fail(index: int) -> None:
        raise AssertionError("was read")

    source.on_read = fail
    with pytest.raises(UserError, match="batch_size=10, or another number up to 20"):
        stream(source, batch_size=21)


@pytest.fixture
def decoded_together(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many images each call was given that a stand-in for nvJPEG decoded.

    It refuses a batch of which one image is 23 wide.
    """
    sizes = []

    def together(
        encoded: list[torch.Tensor], mode: str, device: torch.device
    ) -> list[torch.Tensor]:
        images = [decode.decode(data.numpy().tobytes()) for data in encoded]
        sizes.append(len(images))
        if any(image.shape[2] == 23 for image in images):
            raise RuntimeError("no partial results")
        return images

    fake = nvjpeg.GpuDecoder("a test's", nvjpeg.LibraryDecoder(together, True).borrowed)
    monkeypatch.setattr(nvjpeg, "_gpu_decoder", lambda device: fake)
    monkeypatch.setattr(stream_module, "gpu_decoder_name", lambda device: fake.name)
    return sizes


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
@pytest.mark.parametrize("damaged", [(), (3, 4, 19)])
def test_decoding_on_the_gpu_keeps_the_order(
    decoded_together: list[int], kind: str, damaged: tuple[int, ...]
) -> None:
    by_threads = list(stream(Pictures(damaged=damaged, kind=kind)).steps(0, 6))
    decoded_together.clear()
    for keep in (False, True):
        loader_options = LoaderOptions(resident=keep, num_workers=2)
        damage = Damage(limit=3)
        source = Pictures(damaged=damaged, kind=kind)
        batches = opened(source, loader_options, damage=damage)
        assert_same(by_threads, list(batches.steps(0, 6)))
        assert_same(by_threads, list(batches.steps(0, 6)))
        assert sorted(damage.names) == sorted(f"picture-{index}" for index in damaged)
        assert bool(decoded_together) == (kind == "JPEG")
        decoded_together.clear()


def test_what_the_gpu_refuses_is_not_read_again(decoded_together: list[int]) -> None:
    source = Pictures(kind="JPEG")
    read: list[int] = []
    source.on_read = read.append
    loader_options = LoaderOptions(resident=False, num_workers=2, num_ahead=1)
    (batch,) = opened(source, loader_options, batch_size=20).steps(0, 1)
    assert len(decoded_together) > 1
    assert sorted(read) == list(range(20))
    assert sorted(batch.indices.tolist()) == list(range(20))


@pytest.mark.parametrize(("seconds", "many"), [(0.005, True), (0.0, False)])
def test_only_slow_storage_is_read_by_many_threads(
    monkeypatch: pytest.MonkeyPatch, seconds: float, many: bool
) -> None:
    monkeypatch.setattr(stream_module, "gpu_decoder_name", lambda device: "a test's")
    monkeypatch.setattr(image_reader, "_SLOW_READ", 0.004)
    source = Pictures(num=24)
    readers: set[int] = set()

    def wait(index: int) -> None:
        readers.add(threading.get_ident())
        time.sleep(seconds)

    source.on_read = wait
    loader_options = LoaderOptions(resident=False, num_workers=1, num_ahead=1)
    (batch,) = opened(source, loader_options, batch_size=24).steps(0, 1)
    assert (len(readers) > 1) == many
    means = batch.images.float().mean((1, 2, 3))
    assert ((means - 10) / 10).round().long().tolist() == batch.indices.tolist()


@pytest.mark.cuda
@pytest.mark.parametrize("make", [stream, resident])
def test_the_gpu_gets_what_the_cpu_gets(make: Callable[..., Batches]) -> None:
    for crop in (RANDOM, CenterCrop(size=(12, 12))):
        plain = list(make(Pictures(), crops=(crop,)).steps(0, 5))
        fast = list(make(Pictures(), crops=(crop,), device="cuda").steps(0, 5))
        for one, other in zip(plain, fast, strict=True):
            assert torch.equal(one.keys, other.keys.cpu())
            difference = one.images.int() - other.images.cpu().int()
            assert difference.abs().max() <= 1


@pytest.mark.cuda
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("crops", [(), (CenterCrop(size=(12, 12)),)])
def test_a_resident_batch_never_waits_for_the_gpu(
    crops: tuple[CenterCrop, ...],
) -> None:
    batches = resident(Squares(), crops=crops, channels=1, device="cuda")
    next(batches.steps(0, 1))
    torch.cuda.set_sync_debug_mode("error")
    try:
        list(batches.steps(0, 5))
    finally:
        torch.cuda.set_sync_debug_mode("default")


class Photographs(Source):
    """Large images of several kinds beside a small one."""

    def __init__(self) -> None:
        self.classes = ("all",)
        self._datas = []
        for index, kind in enumerate(("JPEG", "PNG", "TIFF", "JPEG")):
            small = np.random.default_rng(index).integers(0, 256, (9, 7, 3), np.uint8)
            size = (700 + index, 1000) if index < 3 else (40, 30)
            file = io.BytesIO()
            Image.fromarray(small).resize(size).save(file, kind)
            self._datas.append(file.getvalue())
        self.labels = np.zeros(len(self._datas), np.int64)

    def read(self, index: int) -> bytes:
        return self._datas[index]

    def name(self, index: int) -> str:
        return f"photograph-{index}"


def test_large_images_are_kept_as_small_as_crops_allow_and_streamed_alike() -> None:
    source = Photographs()
    found = []
    for resident in (True, False):
        loader_options = LoaderOptions(resident=resident, num_workers=2)
        batches = open_batches(
            source,
            batch_size=4,
            crops=(RANDOM,),
            device="cpu",
            loader_options=loader_options,
        )
        found.append(list(batches.steps(0, 3)))
        if isinstance(batches, resident_module.ResidentBatches):
            heights = batches.resident.images.heights.tolist()
            assert heights == [63, 63, 63, 30]
    for one, other in zip(*found, strict=True):
        assert torch.equal(one.images, other.images)


@pytest.mark.parametrize("resident", [True, False])
def test_an_image_of_too_many_pixels_is_named_and_skipped(resident: bool) -> None:
    damage = Damage()
    loader_options = LoaderOptions(
        resident=resident, num_workers=2, max_pixels=700 * 1000
    )
    batches = open_batches(
        Photographs(),
        batch_size=4,
        crops=(RANDOM,),
        device="cpu",
        damage=damage,
        loader_options=loader_options,
    )
    list(batches.steps(0, 2))
    assert sorted(damage.names) == ["photograph-1", "photograph-2"]
    assert "× 1,000 pixels exceed the limit of 700,000" in damage.reasons[0][1]


class OnCuda:
    """Looks like a CUDA device to what decides how images are read."""

    type = "cuda"


def test_reading_ahead_starts_the_processes_that_loading_uses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = Pictures(9, size=(16, 16))
    started: list[object] = []
    plain = stream_module.ImageStream.start_workers

    def start(stream: Any) -> None:
        plain(stream)
        started.append(stream.idle_pools[0])

    monkeypatch.setattr(stream_module.ImageStream, "start_workers", start)
    options = LoaderOptions(num_workers=1)
    loader = Loader(source, max_pixels=options.max_pixels)
    ahead = resident_module.resident_images(
        loader, torch.device("cpu"), 1, True, ahead=True
    )
    assert len(started) == 1
    assert not ahead.is_loaded
    batches = open_batches(
        source, batch_size=4, crops=(), device="cpu", loader_options=options
    )
    assert isinstance(batches, resident_module.ResidentBatches)
    assert batches.resident is ahead
    assert ahead.is_loaded
    assert len(ahead.loaded) == len(source)


def start_loading(source: Source, max_bytes: float) -> resident_module.ResidentImages:
    """What `start_reading` does for a large set on a GPU, but on a CPU."""
    loader = Loader(source, max_pixels=LoaderOptions().max_pixels)
    device = torch.device("cpu")
    kept = resident_module.resident_images(loader, device, 1, True, ahead=True)
    kept.start_loading(max_bytes)
    return kept


def test_opening_finds_the_images_that_were_decoded_ahead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = Pictures(9, size=(16, 16))
    kept = start_loading(source, math.inf)
    assert kept.is_loading
    # They take memory that was free before.
    monkeypatch.setattr(batches_module, "free_bytes", lambda device: 0)
    options = LoaderOptions(num_workers=1)
    batches = opened(source, options, crops=())
    assert isinstance(batches, resident_module.ResidentBatches)
    assert batches.resident is kept
    assert kept.is_loaded
    assert not kept.is_loading
    again = resident_module.ResidentImages(Loader(source), torch.device("cpu"))
    again.load()
    assert torch.equal(again.images.pixels, kept.images.pixels)
    assert np.array_equal(again.loaded, kept.loaded)


def test_what_turns_out_too_large_ahead_is_streamed() -> None:
    source = Pictures(9, size=(16, 16))
    start_loading(source, max_bytes=1000)
    batches = opened(source, LoaderOptions(num_workers=1), crops=())
    assert "more than 1 kB, a quarter of free memory" in batches.description
    streamed = stream(source, crops=())
    assert_same(list(batches.steps(0, 2)), list(streamed.steps(0, 2)))


def test_no_workers_stay_of_images_that_are_not_kept() -> None:
    source = Pictures(9, size=(16, 16))
    started = weakref.ref(start_loading(source, max_bytes=1000))
    opened(source, LoaderOptions(num_workers=1), crops=())
    gc.collect()
    assert started() is None


def test_an_error_ahead_is_raised_where_the_images_are_opened() -> None:
    def fail(index: int) -> None:
        raise UserError("The disk is gone.")

    source = Pictures(9, size=(16, 16))
    kept = resident_module.ResidentImages(Loader(source), torch.device("cpu"))
    source.on_read = fail
    kept.start_loading(math.inf)
    with pytest.raises(UserError, match="The disk is gone"):
        kept.load()
    assert not kept.is_loaded
    source.on_read = lambda index: None
    kept.load()
    assert kept.is_loaded


def test_a_program_that_ends_does_not_wait_for_images_decoded_ahead() -> None:
    program = """
import math, time
import numpy as np, torch
from t2t.data.loader import Loader
from t2t.data.resident import ResidentImages
from t2t.data.sources.base import Source

class Slow(Source):
    classes, labels = ("one",), np.zeros(100_000, dtype=np.int64)

    def read(self, index):
        time.sleep(0.001 * (index > 0))
        return torch.zeros(3, 64, 64, dtype=torch.uint8)

    def name(self, index):
        return str(index)

kept = ResidentImages(Loader(Slow()), torch.device("cpu"), num_workers=1, ahead=True)
kept.start_loading(math.inf)
time.sleep(0.5)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_small_sets_and_cpus_start_no_processes() -> None:
    source = Pictures(9, size=(16, 16))
    for device in (torch.device("cpu"), OnCuda()):
        batches_module.start_reading(source, crops=(), device=device)  # type: ignore[arg-type]
    kept = resident_module.resident_images(Loader(source), torch.device("cpu"), 1, True)
    assert kept._stream.idle_pools == []


def test_parts_are_freed_as_they_are_joined() -> None:
    parts = [
        Ragged.from_images([torch.full((3, 2, number + 1), number, dtype=torch.uint8)])
        for number in range(4)
    ]
    freed = [weakref.ref(part.pixels) for part in parts]
    whole = resident_module._joined(parts)
    assert parts == []
    assert [each() for each in freed] == [None] * 4
    assert whole.widths.tolist() == [1, 2, 3, 4]
    for number, start in enumerate(whole.offsets.tolist()):
        assert whole.pixels[start] == number
