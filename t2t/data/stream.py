"""Large sets: read and decoded ahead of the steps that need them."""

import itertools
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from t2t.data.crops import Crop, apply_crop, as_batch
from t2t.data.damage import DamagedImage
from t2t.data.draws import Draws
from t2t.data.loading import (
    ImagePixels,
    Loader,
    batch_of,
    decoded_on_gpu,
    num_cores,
    part_of,
)
from t2t.data.nvjpeg import decode_jpegs, gpu_decoder_name
from t2t.data.order import Batch, Order, Slots
from t2t.data.sources.base import Indices
from t2t.ops.ragged import Ragged
from t2t.shapes import Pixels

Data = bytes | Tensor
Result = TypeVar("Result")
Items = TypeVar("Items", list[int], Indices)

# Images a thread decodes at once: enough that handing out work costs little.
_CHUNK = 8
# What is in memory already is read by the one thread that makes the step: more would
# queue for the GIL at every system call. Where most of the first reads take longer
# than `_SLOW_READ` seconds, the storage is far and many threads wait for it at once.
_NUM_TIMED = 8
_SLOW_READ = 5e-4
_SLOW_CHUNK = 4
_NUM_READERS = 64
# Before training's own kernels: the many small ones of a decoder would each wait for
# a large one, and training then for its input.
_PRIORITY = -1
_SWITCH_INTERVAL = 5e-4


class Piece(NamedTuple):
    """Some images of a batch, on their way to the device."""

    places: Indices
    indices: list[int]
    """Which images they are, after damaged ones were replaced."""
    ragged: Ragged


class Made(NamedTuple):
    """A batch that its stream may still be working on."""

    batch: Batch
    event: torch.cuda.Event | None


class StreamBatches:
    """Batches made several steps ahead by threads, the same whatever their number.

    On a CUDA device nvJPEG decodes `gpu_share` of the images and threads the others.
    Which one decodes an image is a function of its index, since the two differ by a
    few grey levels. Pixels travel as uint8; cropping happens on the device.
    """

    def __init__(
        self,
        loader: Loader,
        order: Order,
        crop: Crop | None,
        *,
        device: torch.device,
        num_workers: int | None = None,
        num_ahead: int = 4,
        gpu_share: float = 1.0,
        description: str = "",
    ) -> None:
        self.loader = loader
        self.order = order
        self.crop = crop
        self.device = device
        self.num_workers = num_workers or num_cores()
        self.num_ahead = num_ahead
        self.gpu_share = gpu_share if gpu_decoder_name(device) else 0.0
        self.description = description
        self._streams: list[Any] = [None] * num_ahead
        if device.type == "cuda":
            self._streams = [
                torch.cuda.Stream(device, _PRIORITY) for _ in range(num_ahead)
            ]

    def steps(self, start: int, stop: int) -> Iterator[Batch]:
        """The batches of these steps, in order; threads live while it is read."""
        workers = ThreadPoolExecutor(self.num_workers, "t2t-decode")
        readers = ThreadPoolExecutor(_NUM_READERS, "t2t-read")
        makers = ThreadPoolExecutor(self.num_ahead, "t2t-batch")
        work = _Work(self, workers, readers)
        upcoming = iter(range(start, stop))
        pending: deque[Future[Made]] = deque(
            makers.submit(work.make, step)
            for step in itertools.islice(upcoming, self.num_ahead)
        )
        try:
            with _quick_handovers(self.device):
                while pending:
                    made = pending.popleft().result()
                    for step in itertools.islice(upcoming, 1):
                        pending.append(makers.submit(work.make, step))
                    yield self._handed_over(made)
        finally:
            work.halted.set()
            for pool in (workers, readers):
                pool.shutdown(wait=False, cancel_futures=True)
            for pool in (makers, workers, readers):
                pool.shutdown(wait=True, cancel_futures=True)

    def _handed_over(self, made: Made) -> Batch:
        """The batch, ordered before what the caller's stream does next."""
        if made.event is not None:
            current = torch.cuda.current_stream(self.device)
            current.wait_event(made.event)
            for tensor in made.batch:
                tensor.record_stream(current)
        return made.batch


class _Work:
    """What the threads of one iteration do."""

    def __init__(
        self,
        batches: StreamBatches,
        workers: ThreadPoolExecutor,
        readers: ThreadPoolExecutor,
    ) -> None:
        self.batches = batches
        self.readers = readers
        self.loader = batches.loader
        self.device = batches.device
        self.workers = workers
        self.halted = threading.Event()

    def make(self, step: int) -> Made:
        """All of one step, on a stream that no other step uses meanwhile."""
        stream = self.batches._streams[step % self.batches.num_ahead]
        if stream is None:
            return Made(self._batch(step, None), None)
        # Memory that earlier work of this stream still reads may be handed to the
        # decoder, which writes to it on a stream of its own.
        stream.synchronize()
        with torch.cuda.stream(stream):
            batch = self._batch(step, stream)
            event = torch.cuda.Event()
            event.record(stream)
        return Made(batch, event)

    def _batch(self, step: int, stream: Any) -> Batch:
        slots = self.batches.order.slots(step)
        wanted = self.loader.stand_ins(slots.indices)
        # An image that stands in for another is always decoded by a thread, so that
        # it looks the same when the damage is found and when it is known.
        by_gpu = decoded_on_gpu(wanted, self.batches.gpu_share)
        by_gpu &= wanted == slots.indices
        decoding = self._decode_by_threads(np.flatnonzero(~by_gpu), wanted, {}, stream)
        pieces = []
        places = np.flatnonzero(by_gpu)
        if len(places):
            datas = self._read_all(wanted[places].tolist())
            found = decode_jpegs(datas, self.loader.channels, self.device)
            if found is not None:
                theirs = places[found[0]]
                pieces.append(Piece(theirs, wanted[theirs].tolist(), found[1]))
                by_gpu[theirs] = False
            read = dict(zip(places.tolist(), datas, strict=True))
            rest = np.flatnonzero(by_gpu)
            decoding += self._decode_by_threads(rest, wanted, read, stream)
        pieces += [future.result() for future in decoding]

        where = np.argsort(np.concatenate([piece.places for piece in pieces]))
        loaded = np.array([i for piece in pieces for i in piece.indices])[where]
        ragged = Ragged.joined([piece.ragged for piece in pieces])
        images = self._images(step, slots, ragged, torch.from_numpy(where))
        labels = self.loader.source.labels
        return batch_of(images, loaded, slots, labels, self.device)

    def _images(self, step: int, slots: Slots, ragged: Ragged, where: Tensor) -> Pixels:
        """The images in the order of the slots, cropped where that is asked."""
        if self.batches.crop is None:
            return as_batch(ragged)[where.to(self.device)]
        seed = self.batches.order.seed
        draws = Draws.of(seed, step, torch.from_numpy(slots.keys))
        return apply_crop(self.batches.crop, ragged.select(where), draws)

    def _decode_by_threads(
        self, places: Indices, wanted: Indices, read: dict[int, Data], stream: Any
    ) -> list[Future[Piece]]:
        return [
            self._submit(self.workers, self._decode, chunk, wanted[chunk], read, stream)
            for chunk in _chunks(places, _CHUNK)
        ]

    def _submit(
        self, pool: ThreadPoolExecutor, task: Callable[..., Result], *arguments: Any
    ) -> Future[Result]:
        try:
            return pool.submit(task, *arguments)
        except RuntimeError as error:  # the pool was shut while this step began
            raise CancelledError from error

    def _check_halted(self) -> None:
        if self.halted.is_set():
            raise CancelledError

    def _read(self, indices: list[int]) -> list[Data]:
        datas = []
        for index in indices:
            self._check_halted()
            try:
                datas.append(self.loader.source.read(index))
            except DamagedImage:
                datas.append(b"")  # no image: the thread that decodes it names it
        return datas

    def _read_all(self, indices: list[int]) -> list[Data]:
        """All of a step's files, by this thread or by many where that is slow."""
        datas: list[Data] = []
        seconds = []
        for index in indices[:_NUM_TIMED]:
            started = time.perf_counter()
            datas += self._read([index])
            seconds.append(time.perf_counter() - started)
        rest = indices[_NUM_TIMED:]
        if sorted(seconds)[len(seconds) // 4] < _SLOW_READ:
            return datas + self._read(rest)
        reading = [
            self._submit(self.readers, self._read, chunk)
            for chunk in _chunks(rest, _SLOW_CHUNK)
        ]
        return datas + [data for future in reading for data in future.result()]

    def _decode(
        self, places: Indices, indices: Indices, read: dict[int, Data], stream: Any
    ) -> Piece:
        """A thread's share, of which some may have been read already."""
        loaded = []
        images: list[ImagePixels] = []
        for place, index in zip(places.tolist(), indices.tolist(), strict=True):
            self._check_halted()
            if place in read:
                found, pixels = self.loader.load_read(index, read[place])
            else:
                found, pixels = self.loader.load(index)
            loaded.append(found)
            images.append(pixels)
        with torch.cuda.stream(stream) if stream is not None else nullcontext():
            part = part_of(loaded, images, self.device)
        ragged = Ragged.from_parts(
            part.pixels[0],
            torch.tensor(part.heights),
            torch.tensor(part.widths),
            torch.tensor(part.interleaved),
            self.loader.channels,
        )
        return Piece(places, loaded, ragged)


def _chunks(items: Items, size: int) -> list[Items]:
    return [items[start : start + size] for start in range(0, len(items), size)]


@contextmanager
def _quick_handovers(device: torch.device) -> Iterator[None]:
    """A thread that waits for the GIL is given it soon, so that a GPU does not wait.

    The training thread lets go of it whenever it waits for the GPU. With Python's own
    interval it would get it back up to five milliseconds late, several times a step.
    """
    interval = sys.getswitchinterval()
    if device.type == "cuda":
        sys.setswitchinterval(min(interval, _SWITCH_INTERVAL))
    try:
        yield
    finally:
        sys.setswitchinterval(interval)
