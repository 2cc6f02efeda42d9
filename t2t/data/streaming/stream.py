"""Images, prepared several steps ahead; pool.py has a diagram."""

import itertools
import os
import queue
import sys
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from t2t.data.decoding.nvjpeg import CHANNELS, decode_gathered, gpu_decoder_name
from t2t.data.loader import Loader
from t2t.data.resources import num_cores
from t2t.data.sampler import BatchIndices, Sampler
from t2t.data.sources.base import Indices
from t2t.data.streaming.pool import WorkerPool
from t2t.data.streaming.shared_memory import ImageKind, Request
from t2t.data.streaming.worker import NotPicklable, pickled
from t2t.errors import UserError
from t2t.ops.ragged import Ragged

# Above training's priority (`distributed.PRIORITY`): otherwise each of the few kernels
# that crop a batch waits for many large ones, and training for its batch.
_INPUT_PRIORITY = -2
# Steps whose files are read while all batch threads are busy.
_NUM_READ_AHEAD = 2


class HasTensors(Protocol):
    """The result of a step, which lists its tensors."""

    @property
    def tensors(self) -> tuple[Tensor, ...]: ...


class Decoded(NamedTuple):
    """The images of a step, on the device, in the order of the batch."""

    images: Ragged
    loaded: Indices
    """The index of each image in the source, after damaged ones were replaced."""
    batch_indices: BatchIndices

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (self.images.pixels,)


MakeResult = Callable[[int, Decoded], Any]


class ImageStream:
    """The images of steps, the same whatever the number of workers.

    Workers read the files. On a CUDA device nvJPEG decodes the JPEGs that it supports,
    and workers all others. Pixels are copied as uint8. Workers are processes for a CUDA
    device, since threads would take the GIL from the training thread, else threads.
    """

    def __init__(
        self,
        loader: Loader,
        sampler: Sampler,
        *,
        device: torch.device,
        num_workers: int | None = None,
        num_ahead: int = 3,
        nvjpeg: bool = True,
        processes: bool | None = None,
        threads_first: bool = True,
        in_order: bool = False,
    ) -> None:
        self.loader = loader
        self.sampler = sampler
        self.device = device
        self.num_workers = num_workers or num_cores()
        self.num_ahead = num_ahead
        may_use_nvjpeg = nvjpeg and loader.channels in CHANNELS
        gpu_decoder = gpu_decoder_name(device) if may_use_nvjpeg else None
        self.uses_gpu_decoder = gpu_decoder is not None
        self._processes, kind = uses_processes(loader, device, processes, in_order)
        self._threads_first = threads_first and not processes
        self.description = f"decoded by {self.num_workers} {kind}"
        if self.uses_gpu_decoder:
            self.description = (
                f"read by {self.num_workers} {kind}, JPEGs decoded by {gpu_decoder}"
            )
        self.idle_pools: list[WorkerPool] = []
        self._cuda_streams: queue.SimpleQueue[torch.cuda.Stream] = queue.SimpleQueue()

    def start_workers(self) -> None:
        """Starts the workers of the first iteration; processes take seconds."""
        if not self.idle_pools:
            self.idle_pools.append(self._new_pool())

    def steps(self, start: int, stop: int, make_result: MakeResult) -> Generator[Any]:
        """Yields `make_result(step, decoded)` for each step, in order.

        The function is called in another thread, on its own CUDA stream.
        """
        with self._pool() as pool, pool.running():
            request_thread = ThreadPoolExecutor(1, "t2t-request")
            batch_threads = ThreadPoolExecutor(self.num_ahead, "t2t-batch")
            iteration = _Iteration(self, pool, make_result)
            upcoming = iter(range(start, stop))
            requests: deque[Future[PendingRead]] = deque()
            pending: deque[Future[PendingResult]] = deque()

            def submit(num_steps: int) -> None:
                for step in itertools.islice(upcoming, num_steps):
                    requests.append(request_thread.submit(iteration.request, step))
                    pending.append(
                        batch_threads.submit(iteration.make, step, requests[-1])
                    )

            try:
                submit(self.num_ahead + _NUM_READ_AHEAD)
                while pending:
                    pending_result = pending.popleft().result()
                    requests.popleft()
                    submit(1)
                    yield self._synchronized(pending_result)
            finally:
                # Cancel everything before waiting: a second Ctrl-C ends the wait, and
                # must leave no thread that waits for ever. The flag is set first, since
                # Ctrl-C can interrupt before any later line.
                iteration.is_cancelled = True
                self.loader.source.stop_waiting()
                for each in requests:
                    each.add_done_callback(_release)
                request_thread.shutdown(wait=True, cancel_futures=True)
                batch_threads.shutdown(wait=True, cancel_futures=True)

    @contextmanager
    def _pool(self) -> Iterator[WorkerPool]:
        """A pool that no other iteration uses; it is kept for the next one."""
        pool = self.idle_pools.pop() if self.idle_pools else self._new_pool()
        try:
            yield pool
        finally:
            self.idle_pools.append(pool)

    def _new_pool(self) -> WorkerPool:
        loader = self.loader
        warn = loader.damage.warn or warnings.warn
        options = loader.source, loader.decoding, self.num_workers, self.device, warn
        if self._processes:
            try:
                return WorkerPool(
                    *options, processes=True, threads_first=self._threads_first
                )
            except OSError as error:  # too few processes, files or memory allowed
                warn(f"Worker processes could not start ({error}); using threads.")
        return WorkerPool(*options, processes=False)

    @contextmanager
    def borrow_cuda_stream(self) -> Iterator[torch.cuda.Stream]:
        """A CUDA stream that no other step uses at the same time."""
        try:
            stream = self._cuda_streams.get_nowait()
        except queue.Empty:
            stream = torch.cuda.Stream(self.device, _INPUT_PRIORITY)
        try:
            yield stream
        finally:
            self._cuda_streams.put(stream)

    def _synchronized(self, pending_result: "PendingResult") -> HasTensors:
        """The result, which the caller's CUDA stream waits for."""
        if pending_result.event is not None:
            current = torch.cuda.current_stream(self.device)
            current.wait_event(pending_result.event)
            for tensor in pending_result.result.tensors:
                tensor.record_stream(current)
        return pending_result.result


class PendingRead(NamedTuple):
    """A step whose images are being read."""

    batch_indices: BatchIndices
    request: Request


class PendingResult(NamedTuple):
    """A result that its CUDA stream may still be working on."""

    result: HasTensors
    event: torch.cuda.Event | None


def _release(requested: Future[PendingRead]) -> None:
    if not requested.cancelled() and requested.exception() is None:
        requested.result().request.release()


class _Iteration:
    """One iteration over the steps; its methods run in threads."""

    def __init__(
        self, stream: ImageStream, pool: WorkerPool, make_result: MakeResult
    ) -> None:
        self.stream = stream
        self.pool = pool
        self.make_result = make_result
        self.loader = stream.loader
        self.device = stream.device
        self.is_cancelled = False

    def request(self, step: int) -> PendingRead:
        """Requests the images of a step; workers decode what nvJPEG does not."""
        batch_indices = self.stream.sampler.batch_indices(step)
        indices = self.loader.replace_damaged(batch_indices.indices)
        # A replacement is always decoded by a worker: its pixels must not depend on
        # whether the damage was known before.
        on_gpu = (indices == batch_indices.indices) & self.stream.uses_gpu_decoder
        request = Request(indices, self.pool.arena)
        try:
            self.pool.submit(request, np.flatnonzero(~on_gpu), decodes=True)
            self.pool.submit(request, np.flatnonzero(on_gpu), decodes=False)
        except BaseException:
            request.release()
            raise
        return PendingRead(batch_indices, request)

    def make(self, step: int, requested: Future[PendingRead]) -> PendingResult:
        """The result of a step, computed on its own CUDA stream."""
        batch_indices, request = requested.result()
        try:
            request.wait(lambda: self.is_cancelled)
            if self.device.type != "cuda":
                return PendingResult(
                    self.make_result(step, self._decoded(batch_indices, request)), None
                )
            with (
                self.stream.borrow_cuda_stream() as stream,
                torch.cuda.stream(stream),
            ):
                # The allocator may give the decoder memory that earlier work of this
                # stream still reads, and the decoder writes on another stream.
                stream.synchronize()
                result = self.make_result(step, self._decoded(batch_indices, request))
                event = torch.cuda.Event()
                event.record(stream)
            return PendingResult(result, event)
        finally:
            request.release()

    def _decoded(self, batch_indices: BatchIndices, request: Request) -> Decoded:
        decoding = self.loader.decoding
        parts: list[tuple[Indices, Ragged]] = []
        undecoded = request.positions_of(ImageKind.JPEG, ImageKind.FILE)
        found = (
            None
            if not self.stream.uses_gpu_decoder
            else decode_gathered(
                request.jpegs(), decoding.channels, self.device, decoding.min_side
            )
        )
        if found is not None:
            parts.append(found)
            undecoded = np.setdiff1d(undecoded, found[0])
        # Workers decode what nvJPEG could not, from the files in the arena.
        self.pool.submit(request, undecoded, decodes=True, is_read=True)
        request.wait(lambda: self.is_cancelled)
        if len(request.positions_of(ImageKind.PLANAR, ImageKind.INTERLEAVED)):
            parts.append(request.pixels(self.device, decoding.channels))
        loaded = request.indices.copy()
        for position, reason in sorted(request.reasons.items()):
            index = int(loaded[position])
            loaded[position], pixels = self.loader.load_replacement(index, reason)
            image = Ragged.from_images([pixels.to(self.device)])
            parts.append((np.array([position]), image))
        order = np.argsort(np.concatenate([positions for positions, _ in parts]))
        images = Ragged.cat([images for _, images in parts])
        self._release_after_copies(request)
        return Decoded(images.select(torch.from_numpy(order)), loaded, batch_indices)

    def _release_after_copies(self, request: Request) -> None:
        """Releases the request's memory once the device has copied all of it."""
        if self.device.type == "cuda":
            copied = torch.cuda.Event(blocking=True)
            copied.record(torch.cuda.current_stream(self.device))
            copied.synchronize()
        request.release()


def uses_processes(
    loader: Loader, device: torch.device, asked: bool | None, in_order: bool = False
) -> tuple[bool, str]:
    """Whether workers are processes, and how to call them in the log."""
    source = loader.source
    if asked is False or (asked is None and device.type != "cuda"):
        return False, "threads"
    if not (sys.executable and hasattr(os, "memfd_create")):
        reason = "processes need Linux"
    elif asked is None and (
        source.is_in_memory_in_order if in_order else source.is_in_memory
    ):
        reason = "each process would need a copy of what the source keeps in memory"
    else:
        try:
            pickled(source, loader.decoding)
        except NotPicklable as error:
            reason = f"the source cannot be sent to processes: {error}"
        else:
            return True, "processes"
    if asked:
        raise UserError(f"processes=True is not possible: {reason}.")
    return False, f"threads ({reason})"
