"""Large sets: read and decoded ahead of the steps that need them."""

import itertools
import os
import queue
import sys
import warnings
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from t2t.data.crops import Crop, as_batch, crop_views
from t2t.data.decoding.jpegs import Jpegs
from t2t.data.decoding.nvjpeg import CHANNELS, decode_gathered, gpu_decoder_name
from t2t.data.loading import Loader, batch_of
from t2t.data.resources import num_cores
from t2t.data.rng import CounterRng
from t2t.data.sampler import Batch, BatchIndices, Sampler
from t2t.data.sources.base import Indices
from t2t.data.streaming.crew import Crew, ThreadCrew
from t2t.data.streaming.filling import Kind
from t2t.data.streaming.memory import Memory, pieces_of
from t2t.data.streaming.process_crew import ProcessCrew
from t2t.data.streaming.requests import Request
from t2t.data.streaming.worker import NotPortable, pickled
from t2t.errors import UserError
from t2t.ops.ragged import Ragged, roomy
from t2t.shapes import Pixels

# Before training's own kernels, whose priority is the next: the few that crop a batch
# would each wait for many large ones, and training then for its input.
_PRIORITY = -2
# Steps whose files are read before a thread is free to make their batch.
_NUM_READ_AHEAD = 2


class Asked(NamedTuple):
    """A step whose images are on their way."""

    slots: BatchIndices
    request: Request


class Made(NamedTuple):
    """A batch that its stream may still be working on."""

    batch: Batch
    event: torch.cuda.Event | None


class StreamBatches:
    """Batches made several steps ahead, the same whatever the number of workers.

    Workers read the files. On a CUDA device nvJPEG decodes the JPEGs that it can, and
    workers all else. Pixels travel as uint8; cropping happens on the device. Workers
    are processes for a CUDA device, whose training thread would else wait for the GIL,
    and threads for any other.
    """

    def __init__(
        self,
        loader: Loader,
        order: Sampler,
        crops: tuple[Crop, ...] = (),
        *,
        device: torch.device,
        num_workers: int | None = None,
        num_ahead: int = 3,
        nvjpeg: bool = True,
        processes: bool | None = None,
        threads_first: bool = True,
    ) -> None:
        self.loader = loader
        self.order = order
        self.crops = crops
        self.device = device
        self.num_workers = num_workers or num_cores()
        self.num_ahead = num_ahead
        wanted = nvjpeg and loader.channels in CHANNELS
        on_gpu = gpu_decoder_name(device) if wanted else None
        self.by_gpu = on_gpu is not None
        self._by_processes, kind = by_processes(loader, device, processes)
        self._threads_first = threads_first and processes is None
        self.description = f"decoded by {self.num_workers} {kind}"
        if self.by_gpu:
            self.description = (
                f"read by {self.num_workers} {kind}, JPEGs decoded by {on_gpu}"
            )
        self._idle: list[Crew] = []
        self._streams: queue.SimpleQueue[torch.cuda.Stream] = queue.SimpleQueue()

    def steps(self, start: int, stop: int) -> Iterator[Batch]:
        """The batches of these steps, in order; threads live while it is read."""
        with self._crew() as crew, crew.at_work():
            asking = ThreadPoolExecutor(1, "t2t-ask")
            making = ThreadPoolExecutor(self.num_ahead, "t2t-batch")
            work = _Work(self, crew)
            upcoming = iter(range(start, stop))
            all_asked: deque[Future[Asked]] = deque()
            pending: deque[Future[Made]] = deque()

            def begin(num_steps: int) -> None:
                for step in itertools.islice(upcoming, num_steps):
                    all_asked.append(asking.submit(work.ask, step))
                    pending.append(making.submit(work.make, step, all_asked[-1]))

            try:
                begin(self.num_ahead + _NUM_READ_AHEAD)
                while pending:
                    made = pending.popleft().result()
                    all_asked.popleft()
                    begin(1)
                    yield self._handed_over(made)
            finally:
                # Before anything is waited for: a second Ctrl-C ends the waiting, and
                # a thread would wait for ever for what nobody brings. First of all
                # what no Ctrl-C can come before, since it may end the rest too.
                work.is_over = True
                for asked in all_asked:
                    asked.add_done_callback(_release)
                asking.shutdown(wait=True, cancel_futures=True)
                making.shutdown(wait=True, cancel_futures=True)

    @contextmanager
    def _crew(self) -> Iterator[Crew]:
        """Workers that no other iteration has; they are kept for the next one."""
        crew = self._idle.pop() if self._idle else self._new_crew()
        try:
            yield crew
        finally:
            self._idle.append(crew)

    @contextmanager
    def borrowed_stream(self) -> Iterator[torch.cuda.Stream]:
        """A stream that no other batch is made on meanwhile."""
        try:
            stream = self._streams.get_nowait()
        except queue.Empty:
            stream = torch.cuda.Stream(self.device, _PRIORITY)
        try:
            yield stream
        finally:
            self._streams.put(stream)

    def _new_crew(self) -> Crew:
        source, decoding = self.loader.source, self.loader.decoding
        if self._by_processes:
            warn = self.loader.damage.warn or warnings.warn
            try:
                return ProcessCrew(
                    *(source, decoding, self.num_workers, self.device, warn),
                    threads_first=self._threads_first,
                )
            except OSError as error:  # no more of processes, files or memory
                warn(f"Worker processes could not start ({error}): threads do it.")
        return ThreadCrew(source, decoding, self.num_workers, Memory(self.device))

    def _handed_over(self, made: Made) -> Batch:
        """The batch, ordered before what the caller's stream does next."""
        if made.event is not None:
            current = torch.cuda.current_stream(self.device)
            current.wait_event(made.event)
            for tensor in made.batch.tensors:
                tensor.record_stream(current)
        return made.batch


def _release(asked: Future[Asked]) -> None:
    if not asked.cancelled() and asked.exception() is None:
        asked.result().request.release()


class _Work:
    """What the threads of one iteration do."""

    def __init__(self, batches: StreamBatches, crew: Crew) -> None:
        self.batches = batches
        self.crew = crew
        self.loader = batches.loader
        self.device = batches.device
        self.is_over = False
        """Whether nobody wants more batches."""

    def ask(self, step: int) -> Asked:
        """Has the workers read the images of a step, and decode those left to them."""
        slots = self.batches.order.slots(step)
        wanted = self.loader.stand_ins(slots.indices)
        # An image that stands in for another is always decoded by a worker, so that
        # it looks the same when the damage is found and when it is known.
        by_gpu = (wanted == slots.indices) & self.batches.by_gpu
        request = Request(wanted, self.crew.memory)
        try:
            self.crew.ask(request, np.flatnonzero(~by_gpu), decodes=True)
            self.crew.ask(request, np.flatnonzero(by_gpu), decodes=False)
        except BaseException:
            request.release()
            raise
        return Asked(slots, request)

    def make(self, step: int, asking: Future[Asked]) -> Made:
        """All of one step, on a stream of its own."""
        slots, request = asking.result()
        try:
            request.wait(lambda: self.is_over)
            if self.device.type != "cuda":
                return Made(self._batch(step, slots, request), None)
            with self.batches.borrowed_stream() as stream, torch.cuda.stream(stream):
                # Memory that earlier work of this stream still reads may be handed to
                # the decoder, which writes to it on a stream of its own.
                stream.synchronize()
                batch = self._batch(step, slots, request)
                event = torch.cuda.Event()
                event.record(stream)
            return Made(batch, event)
        finally:
            request.release()

    def _batch(self, step: int, slots: BatchIndices, request: Request) -> Batch:
        kinds = request.rows[:, 0]
        refused = (kinds == Kind.JPEG) | (kinds == Kind.FILE)
        pieces = []
        found = self._decode_on_gpu(request)
        if found is not None:
            pieces.append(found)
            refused[found[0]] = False
        # What nvJPEG does not read is decoded by workers, without reading it again.
        rest = np.flatnonzero(refused)
        self.crew.ask(request, rest, decodes=True, is_read=True)
        request.wait(lambda: self.is_over)
        decoded = (kinds == Kind.PLANAR) | (kinds == Kind.INTERLEAVED)
        if decoded.any():
            pieces.append(self._sent(request, np.flatnonzero(decoded)))
        loaded = request.indices.copy()
        for place, reason in sorted(request.reasons.items()):
            loaded[place], pixels = self.loader.load_instead(int(loaded[place]), reason)
            ragged = Ragged.from_images([pixels.to(self.device)])
            pieces.append((np.array([place]), ragged))
        where = np.argsort(np.concatenate([places for places, _ in pieces]))
        ragged = Ragged.joined([ragged for _, ragged in pieces])
        self._let_go(request)
        views = self._views(step, slots, ragged, torch.from_numpy(where))
        return batch_of(views, loaded, slots, self.loader.source.labels, self.device)

    def _decode_on_gpu(self, request: Request) -> tuple[Indices, Ragged] | None:
        places = np.flatnonzero(request.rows[:, 0] == Kind.JPEG)
        columns = request.rows[places, 1:].T.copy()
        jpegs = Jpegs(self.crew.memory.tensor, places, *columns)
        decoding = self.loader.decoding
        return decode_gathered(jpegs, decoding.channels, self.device, decoding.min_side)

    def _sent(self, request: Request, places: Indices) -> tuple[Indices, Ragged]:
        """What workers decoded, on its way to the device, in the order it lay in."""
        places = places[np.argsort(request.rows[places, 1])]
        kinds, starts, lengths, heights, widths, _ = request.rows[places].T.copy()
        pixels = roomy(int(lengths.sum()), self.device)
        memory = self.crew.memory
        target = 0
        for first, last in pieces_of(starts, starts + lengths, request.block_starts):
            piece = pixels[target : target + last - first]
            if self.device.type == "cpu":
                # NumPy copies in this thread, where torch would start a team.
                piece.numpy()[:] = memory.array[first:last]
            else:
                piece.copy_(memory.tensor[first:last], non_blocking=True)
            target += last - first
        ragged = Ragged.from_parts(
            pixels,
            torch.from_numpy(heights),
            torch.from_numpy(widths),
            torch.from_numpy(kinds == Kind.INTERLEAVED),
            self.loader.channels,
        )
        return places, ragged

    def _let_go(self, request: Request) -> None:
        """Releases the request's memory once the device has fetched all."""
        if self.device.type == "cuda":
            fetched = torch.cuda.Event(blocking=True)
            fetched.record(torch.cuda.current_stream(self.device))
            fetched.synchronize()
        request.release()

    def _views(
        self, step: int, slots: BatchIndices, ragged: Ragged, where: Tensor
    ) -> tuple[Pixels, ...]:
        """The images in the order of the slots, cropped where that is asked."""
        if not self.batches.crops:
            return (as_batch(ragged)[where.to(self.device)],)
        seed = self.batches.order.seed
        rng = CounterRng.of(seed, step, torch.from_numpy(slots.keys))
        return crop_views(self.batches.crops, ragged.select(where), rng)


def by_processes(
    loader: Loader, device: torch.device, asked: bool | None
) -> tuple[bool, str]:
    """Whether processes read and decode, or threads; and that in words."""
    if asked is False or (asked is None and device.type != "cuda"):
        return False, "threads"
    if not (sys.executable and hasattr(os, "memfd_create")):
        reason = "processes need Linux"
    elif asked is None and loader.source.is_in_memory:
        reason = "processes would each need what the source keeps in memory"
    else:
        try:
            pickled(loader.source, loader.decoding)
        except NotPortable as error:
            reason = f"the source cannot be sent to processes: {error}"
        else:
            return True, "processes"
    if asked:
        raise UserError(f"processes=True is not possible: {reason}.")
    return False, f"threads ({reason})"
