"""Streamed batches: what is theirs alone while they are made."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from t2t.data.loader import Loader
from t2t.data.sampler import EvaluationSampler
from t2t.data.sources import ArraySource
from t2t.data.sources.base import Indices
from t2t.data.streaming import shared_memory
from t2t.data.streaming import stream as stream_module
from t2t.data.streaming.pool import WorkerPool
from t2t.data.streaming.shared_memory import Arena, Request, contiguous_runs
from t2t.data.streaming.stream import ImageStream
from t2t.data.streaming.stream_batches import StreamBatches


def streamed(
    images: torch.Tensor, batch_size: int, device: str = "cpu"
) -> StreamBatches:
    """Batches of images in order, by a single thread."""
    num = len(images)
    stream = ImageStream(
        Loader(ArraySource(images, [0] * num, ("all",), "images")),
        EvaluationSampler(num_images=num, batch_size=batch_size),
        device=torch.device(device),
        num_workers=1,
        processes=False,
    )
    return StreamBatches(stream)


def test_no_two_batches_are_made_on_one_stream_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that takes long is overtaken by those after it, in as many threads."""
    in_use: set[object] = set()
    num_made = threading.Semaphore(0)

    class Stream:
        def __init__(self, device: torch.device, priority: int) -> None: ...

        def synchronize(self) -> None: ...

    @contextmanager
    def entered(stream: Stream) -> Iterator[None]:
        assert stream not in in_use
        in_use.add(stream)
        yield
        in_use.remove(stream)

    def finish(work: object, step: int, *given: object) -> int:
        if step == 0:
            for _ in range(4):
                assert num_made.acquire(timeout=5)
        num_made.release()
        return step

    event = SimpleNamespace(record=lambda stream: None)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", entered)
    monkeypatch.setattr(torch.cuda, "Event", lambda: event)
    monkeypatch.setattr(Arena, "_page_lock", lambda arena, block: None)
    monkeypatch.setattr(stream_module, "gpu_decoder_name", lambda device: None)
    monkeypatch.setattr(stream_module._Iteration, "_decoded", lambda *given: None)
    monkeypatch.setattr(StreamBatches, "_batch", finish)
    monkeypatch.setattr(ImageStream, "_synchronized", lambda stream, made: made.result)
    images = torch.zeros(8, 3, 2, 2, dtype=torch.uint8)
    batches = streamed(images, 1, "cuda")
    assert list(batches.steps(0, 8)) == list(range(8))


def test_images_travel_together_but_never_across_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Eight images of 512 × 512 fill the first block that is taken to the last byte."""
    sent: list[list[tuple[int, int]]] = []

    def noted(*given: Indices) -> list[tuple[int, int]]:
        sent.append(contiguous_runs(*given))
        return sent[-1]

    monkeypatch.setattr(shared_memory, "contiguous_runs", noted)
    images = torch.randint(0, 256, (16, 3, 512, 512), dtype=torch.uint8)
    (batch,) = streamed(images, 16).steps(0, 1)
    assert torch.equal(batch.images, images)
    size = 8 * 3 * 512 * 512
    assert sent == [[(0, size), (size, 2 * size)]]


def test_a_failed_request_keeps_no_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    submit = WorkerPool.submit

    def submit_or_fail(pool: WorkerPool, *given: Any, decodes: bool) -> None:
        submit(pool, *given, decodes=decodes)
        if not decodes:
            raise LookupError("no one listens")

    monkeypatch.setattr(WorkerPool, "submit", submit_or_fail)
    batches = streamed(torch.zeros(8, 3, 2, 2, dtype=torch.uint8), 4)
    num_bytes = []
    for _ in range(8):
        with pytest.raises(LookupError, match="no one listens"):
            list(batches.steps(0, 2))
        (pool,) = batches.stream.idle_pools
        num_bytes.append(pool.arena.num_bytes)
    assert 0 < num_bytes[-1] < 2 * num_bytes[0]


@pytest.mark.parametrize("at_once", [False, True])
def test_no_thread_waits_for_ever_after_a_second_interrupt(
    at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[Request] = []

    class Noted(Request):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            requests.append(self)

    class Interrupted(ThreadPoolExecutor):
        def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
            super().shutdown(wait=False, cancel_futures=cancel_futures)
            raise KeyboardInterrupt  # while it would have waited

    def read(source: ArraySource, index: int) -> torch.Tensor:
        time.sleep(0.3 if index else 0)
        return source.images[index]

    monkeypatch.setattr(stream_module, "Request", Noted)
    monkeypatch.setattr(stream_module, "ThreadPoolExecutor", Interrupted)
    monkeypatch.setattr(ArraySource, "read", read)
    steps = streamed(torch.zeros(64, 3, 2, 2, dtype=torch.uint8), 1).steps(0, 64)
    next(steps)

    def press_ctrl_c(*_: object) -> None:
        raise KeyboardInterrupt

    if at_once:  # before anything is released
        monkeypatch.setattr(Future, "add_done_callback", press_ctrl_c)
    with pytest.raises(KeyboardInterrupt):
        steps.close()  # type: ignore[attr-defined]
    try:
        for thread in threading.enumerate():
            if thread.name.startswith("t2t-batch"):
                thread.join(timeout=5)
                assert not thread.is_alive()
    finally:
        for request in requests:
            request.release()
