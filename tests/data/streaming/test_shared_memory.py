"""Blocks of memory for batches: no two writers share one, and they are reused."""

import os

import numpy as np
import pytest
import torch

from t2t.data.streaming import shared_memory as module
from t2t.data.streaming.shared_memory import Arena, map_file
from t2t.errors import UserError

CPU = torch.device("cpu")


def test_blocks_do_not_overlap_and_are_taken_again() -> None:
    arena = Arena(CPU)
    blocks = [arena.allocate(size) for size in (1, 100_000, 5_000_000, 100_000)]
    ends = [block.start + block.size for block in blocks]
    assert [block.start for block in blocks] == [0, *ends[:-1]]
    for block, size in zip(blocks, (1, 100_000, 5_000_000, 100_000), strict=True):
        assert size <= block.size <= max(size * 9 // 8, 2 * 65536)
    arena.free(blocks[1])
    arena.free(blocks[2])
    assert arena.allocate(90_000) == blocks[1]
    assert arena.allocate(1) not in blocks  # a large one is kept for what needs it
    assert arena.allocate(4_500_000) == blocks[2]
    assert arena.allocate(0).size > 0


def test_what_is_full_says_so_but_lends_any_block_that_fits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "half_of_all_memory", lambda: 1 << 20)
    arena = Arena(CPU)
    block = arena.allocate(1 << 20)
    with pytest.raises(UserError, match="choose a smaller batch size"):
        arena.allocate(1)
    arena.free(block)
    assert arena.allocate(1) == block


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs Linux")
def test_shared_memory_is_the_same_for_all_and_costs_what_is_used() -> None:
    arena = Arena(CPU, shared=True)
    arena.array[12345:12350] = np.arange(5)
    other = map_file(arena.descriptor)
    assert other[12345:12350].tolist() == [0, 1, 2, 3, 4]
    assert arena.tensor[12345:12350].tolist() == [0, 1, 2, 3, 4]
    assert os.fstat(arena.descriptor).st_blocks * 512 < 1 << 16
    descriptor = arena.descriptor
    del arena
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


@pytest.mark.cuda
@pytest.mark.parametrize("shared", [False, True])
def test_the_gpu_fetches_from_it_by_itself(shared: bool) -> None:
    arena = Arena(torch.device("cuda:0"), shared=shared)
    block = arena.allocate(1 << 20)
    assert arena.tensor[block.start : block.start + block.size].is_pinned()


@pytest.mark.cuda
def test_memory_that_cannot_be_page_locked_is_reported_and_stops_nothing() -> None:
    arena = Arena(torch.device("cuda:0"), shared=True)
    block = arena.allocate(1 << 20)
    with pytest.warns(RuntimeWarning, match="cannot page-lock"):
        arena._page_lock(block)  # a second time
    assert torch.ones(3, device="cuda").sum() == 3


def test_as_much_is_reserved_as_the_system_lends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    empty = np.empty

    def lend(num_bytes: int, dtype: type) -> np.ndarray:
        if num_bytes > 1 << 29:
            raise MemoryError
        return empty(num_bytes, dtype=dtype)

    monkeypatch.setattr(module, "half_of_all_memory", lambda: 1 << 31)
    monkeypatch.setattr(np, "empty", lend)
    assert len(Arena(CPU).array) == 1 << 29
