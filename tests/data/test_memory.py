"""Memory for batches: blocks that nobody else has, used again and again."""

import os

import numpy as np
import pytest
import torch

from t2t.data.streaming import memory as memory_module
from t2t.data.streaming.memory import Memory, mapped
from t2t.errors import UserError

CPU = torch.device("cpu")


def test_blocks_do_not_overlap_and_are_taken_again() -> None:
    memory = Memory(CPU)
    blocks = [memory.take(size) for size in (1, 100_000, 5_000_000, 100_000)]
    ends = [block.start + block.size for block in blocks]
    assert [block.start for block in blocks] == [0, *ends[:-1]]
    for block, size in zip(blocks, (1, 100_000, 5_000_000, 100_000), strict=True):
        assert size <= block.size <= max(size * 9 // 8, 2 * 65536)
    memory.give_back(blocks[1])
    memory.give_back(blocks[2])
    assert memory.take(90_000) == blocks[1]
    assert memory.take(1) not in blocks  # a large one is kept for what needs it
    assert memory.take(4_500_000) == blocks[2]
    assert memory.take(0).size > 0


def test_what_is_full_says_so_but_lends_any_block_that_fits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory_module, "half_of_all_memory", lambda: 1 << 20)
    memory = Memory(CPU)
    block = memory.take(1 << 20)
    with pytest.raises(UserError, match="choose a smaller batch size"):
        memory.take(1)
    memory.give_back(block)
    assert memory.take(1) == block


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs Linux")
def test_shared_memory_is_the_same_for_all_and_costs_what_is_used() -> None:
    memory = Memory(CPU, shared=True)
    memory.array[12345:12350] = np.arange(5)
    other = mapped(memory.descriptor)
    assert other[12345:12350].tolist() == [0, 1, 2, 3, 4]
    assert memory.tensor[12345:12350].tolist() == [0, 1, 2, 3, 4]
    assert os.fstat(memory.descriptor).st_blocks * 512 < 1 << 16
    descriptor = memory.descriptor
    del memory
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("shared", [False, True])
def test_the_gpu_fetches_from_it_by_itself(shared: bool) -> None:
    memory = Memory(torch.device("cuda:0"), shared=shared)
    block = memory.take(1 << 20)
    assert memory.tensor[block.start : block.start + block.size].is_pinned()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_memory_that_cannot_be_page_locked_is_told_of_and_stops_nothing() -> None:
    memory = Memory(torch.device("cuda:0"), shared=True)
    block = memory.take(1 << 20)
    with pytest.warns(RuntimeWarning, match="cannot page-lock"):
        memory._lock_pages(block)  # a second time
    assert torch.ones(3, device="cuda").sum() == 3


def test_as_much_is_reserved_as_the_system_lends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    empty = np.empty

    def lend(num_bytes: int, dtype: type) -> np.ndarray:
        if num_bytes > 1 << 29:
            raise MemoryError
        return empty(num_bytes, dtype=dtype)

    monkeypatch.setattr(memory_module, "half_of_all_memory", lambda: 1 << 31)
    monkeypatch.setattr(np, "empty", lend)
    assert len(Memory(CPU).array) == 1 << 29
