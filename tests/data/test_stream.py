"""Streamed batches: what is theirs alone while they are made."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from t2t.data import stream as stream_module
from t2t.data.loading import Loader
from t2t.data.memory import Memory, pieces_of
from t2t.data.order import EvaluationOrder
from t2t.data.sources.base import Indices
from t2t.data.sources.named import ArraySource
from t2t.data.stream import StreamBatches


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

    def batch(work: object, step: int, *given: object) -> int:
        if step == 0:
            for _ in range(4):
                assert num_made.acquire(timeout=5)
        num_made.release()
        return step

    event = SimpleNamespace(record=lambda stream: None)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", entered)
    monkeypatch.setattr(torch.cuda, "Event", lambda: event)
    monkeypatch.setattr(Memory, "_lock_pages", lambda memory, block: None)
    monkeypatch.setattr(stream_module, "gpu_decoder_name", lambda device: None)
    monkeypatch.setattr(stream_module._Work, "_batch", batch)
    monkeypatch.setattr(StreamBatches, "_handed_over", lambda batches, made: made.batch)
    images = torch.zeros(8, 3, 2, 2, dtype=torch.uint8)
    batches = StreamBatches(
        Loader(ArraySource(images, [0] * 8, ("all",), "zeros")),
        EvaluationOrder(num_images=8, batch_size=1),
        None,
        device=torch.device("cuda"),
        num_workers=1,
        processes=False,
    )
    assert list(batches.steps(0, 8)) == list(range(8))


def test_images_travel_together_but_never_across_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Eight images of 512 × 512 fill the first block that is taken to the last byte."""
    sent: list[list[tuple[int, int]]] = []

    def noted(*given: Indices) -> list[tuple[int, int]]:
        sent.append(pieces_of(*given))
        return sent[-1]

    monkeypatch.setattr(stream_module, "pieces_of", noted)
    images = torch.randint(0, 256, (16, 3, 512, 512), dtype=torch.uint8)
    source = ArraySource(images, range(16), [str(n) for n in range(16)], "random")
    batches = StreamBatches(
        Loader(source),
        EvaluationOrder(num_images=16, batch_size=16),
        None,
        device=torch.device("cpu"),
        num_workers=1,
    )
    (batch,) = batches.steps(0, 1)
    assert torch.equal(batch.images, images)
    size = 8 * 3 * 512 * 512
    assert sent == [[(0, size), (size, 2 * size)]]
