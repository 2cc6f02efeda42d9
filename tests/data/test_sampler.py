"""Order: every image once per pass, the same whoever asks."""

import threading
import time
from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from t2t.data.sampler import (
    BatchIndices,
    BlockShuffle,
    EvaluationSampler,
    ShuffleAhead,
    TrainingSampler,
    shuffled,
    steps_per_epoch,
)
from t2t.data.sources import Source
from t2t.errors import UserError


def slots(step: int, batch_size: int, num_images: int, **others: int) -> BatchIndices:
    order = TrainingSampler(num_images=num_images, batch_size=batch_size, **others)
    return order.batch_indices(step)


@given(
    seed=st.integers(0, 2**63),
    num_images=st.integers(8, 60),
    world_size=st.sampled_from([1, 2, 4]),
    repeats=st.integers(1, 3),
)
@settings(max_examples=40, deadline=None)
def test_ranks_together_see_what_one_process_sees(
    seed: int, num_images: int, world_size: int, repeats: int
) -> None:
    for step in (0, 1, 17):
        alone = slots(step, 8, num_images, seed=seed, repeats=repeats)
        among = {"world_size": world_size, "repeats": repeats}
        shares = [
            slots(step, 8, num_images, seed=seed, rank=rank, **among)
            for rank in range(world_size)
        ]
        for field in range(3):
            together = np.concatenate([share[field] for share in shares])
            np.testing.assert_array_equal(alone[field], together)


def test_an_epoch_holds_every_image_once_and_epochs_differ() -> None:
    order = TrainingSampler(num_images=40, batch_size=8, seed=3)
    assert steps_per_epoch(40, 8) == 5
    epochs = [
        np.concatenate(
            [order.batch_indices(step).indices for step in range(e * 5, e * 5 + 5)]
        )
        for e in range(2)
    ]
    for epoch in epochs:
        np.testing.assert_array_equal(np.sort(epoch), np.arange(40))
    assert (epochs[0] != epochs[1]).any()
    other = TrainingSampler(num_images=40, batch_size=8, seed=4)
    assert (other.batch_indices(0).indices != order.batch_indices(0).indices).any()


def test_the_partial_training_batch_is_dropped() -> None:
    seen = np.concatenate([slots(step, 8, 43).indices for step in range(5)])
    assert len(np.unique(seen)) == 40
    second = np.concatenate([slots(step, 8, 43).indices for step in range(5, 10)])
    assert len(np.unique(second)) == 40


def test_repeats_stand_in_one_batch_on_different_ranks_with_different_keys() -> None:
    shares = [slots(5, 12, 30, rank=rank, world_size=4, repeats=3) for rank in range(4)]
    for share in shares:
        assert len(np.unique(share.indices)) == 3
    indices = np.concatenate([share.indices for share in shares])
    keys = np.concatenate([share.keys for share in shares])
    assert sorted(np.unique(indices, return_counts=True)[1]) == [3, 3, 3, 3]
    assert len(np.unique(keys)) == 12
    np.testing.assert_array_equal(keys % 30, indices)


def test_a_pass_with_repeats_shows_every_image_as_often() -> None:
    seen = np.concatenate(
        [slots(step, 12, 32, seed=1, repeats=3).indices for step in range(8)]
    )
    np.testing.assert_array_equal(np.bincount(seen), np.full(32, 3))


def test_a_batch_that_repeats_do_not_divide_is_cut() -> None:
    counts = np.bincount(slots(0, 10, 20, repeats=3).indices)
    assert sorted(counts[counts > 0]) == [2, 2, 3, 3]


@pytest.mark.parametrize("world_size", [1, 3])
def test_evaluation_loses_none_and_counts_none_twice(world_size: int) -> None:
    orders = [
        EvaluationSampler(num_images=23, batch_size=6, rank=rank, world_size=world_size)
        for rank in range(world_size)
    ]
    seen = []
    for order in orders:
        assert order.num_steps == 4
        for step in range(order.num_steps):
            found = order.batch_indices(step)
            assert len(found.indices) == 6 // world_size
            seen.extend(found.indices[found.valid])
    assert sorted(seen) == list(range(23))


def test_a_permutation_of_imagenet_is_cheap_and_kept() -> None:
    started = time.perf_counter()
    first = shuffled(0, 0, 1_281_167)
    assert time.perf_counter() - started < 3
    assert shuffled(0, 0, 1_281_167) is first
    # The first position of an image is spread evenly: mean distance a third of n.
    distance = np.abs(first - np.arange(len(first))).mean() / len(first)
    assert distance == pytest.approx(1 / 3, abs=0.003)


def test_the_order_does_not_change_between_versions() -> None:
    assert shuffled(7, 2, 8).tolist() == [5, 2, 0, 3, 4, 1, 6, 7]


def test_impossible_batches_are_refused() -> None:
    with pytest.raises(UserError, match=r"50 images .* add --set batch_size=25, or"):
        steps_per_epoch(50, 64)
    with pytest.raises(UserError, match="cannot be split over 3"):
        slots(0, 8, 20, world_size=3)


class Blocked(Source):
    """A source of blocks, of which a process keeps a few in memory."""

    classes = ("a",)

    def __init__(self, sizes: list[int], at_once: int) -> None:
        self.block_of = np.repeat(np.arange(len(sizes)), sizes)
        self.labels = np.zeros(len(self.block_of), np.int64)
        self.at_once = at_once

    @property
    def blocks(self) -> np.ndarray:
        return self.block_of

    @property
    def num_blocks_at_once(self) -> int:
        return self.at_once

    def read(self, index: int) -> bytes:
        raise NotImplementedError

    def name(self, index: int) -> str:
        return str(index)


def dealt(source: Blocked, batch_size: int, **others: int) -> TrainingSampler:
    return TrainingSampler(
        num_images=len(source),
        batch_size=batch_size,
        shuffle=BlockShuffle(source, batch_size),
        **others,
    )


def num_reads(source: Blocked, sampler: TrainingSampler, num_steps: int) -> int:
    """Blocks that a process reads which keeps only the last ones."""
    kept: OrderedDict[int, None] = OrderedDict()
    reads = 0
    for step in range(num_steps):
        for block in source.block_of[sampler.batch_indices(step).indices].tolist():
            reads += block not in kept
            kept[block] = None
            kept.move_to_end(block)
            if len(kept) > source.at_once:
                kept.popitem(last=False)
    return reads


@pytest.mark.parametrize("world_size", [1, 2, 4, 8])
def test_each_block_is_read_once_an_epoch_over_all_ranks(world_size: int) -> None:
    source = Blocked([30] * 64, at_once=16)
    reads = [
        num_reads(source, dealt(source, 48, rank=rank, world_size=world_size), 40)
        for rank in range(world_size)
    ]
    assert sum(reads) == 64
    assert set(reads) == {64 // world_size}


def test_blocks_of_different_sizes_are_rarely_read_twice() -> None:
    sizes = np.random.default_rng(0).integers(20, 60, 64).tolist()
    source = Blocked(sizes, at_once=16)
    num_steps = len(source) // 48
    reads = [
        num_reads(source, dealt(source, 48, rank=rank, world_size=8), num_steps)
        for rank in range(8)
    ]
    assert sum(reads) <= 64 + 8  # at most one is shared by neighbours


def test_dealt_batches_show_every_image_once_and_mix_blocks() -> None:
    source = Blocked([30] * 64, at_once=16)
    sampler = dealt(source, 48, seed=5)
    epochs = [
        np.stack([sampler.batch_indices(step).indices for step in range(e, e + 40)])
        for e in (0, 40)
    ]
    for epoch in epochs:
        np.testing.assert_array_equal(np.sort(epoch.reshape(-1)), np.arange(1920))
        blocks_in_batch = [len(set(source.block_of[batch])) for batch in epoch]
        assert min(blocks_in_batch) >= 8
    assert (epochs[0] != epochs[1]).any()


def test_batches_of_blocks_are_the_same_for_any_number_of_ranks() -> None:
    sizes = np.random.default_rng(1).integers(5, 20, 20).tolist()
    source = Blocked(sizes, at_once=8)
    for step in (0, 3, 30):
        alone = dealt(source, 12, seed=2).batch_indices(step)
        for world_size in (2, 3, 4):
            shares = [
                dealt(source, 12, seed=2, rank=rank, world_size=world_size)
                for rank in range(world_size)
            ]
            together = [share.batch_indices(step).indices for share in shares]
            np.testing.assert_array_equal(alone.indices, np.concatenate(together))


def test_ranks_evaluate_images_that_follow_each_other() -> None:
    sampler = EvaluationSampler(num_images=100, batch_size=8, rank=1, world_size=2)
    seen = np.concatenate(
        [sampler.batch_indices(step).indices for step in range(sampler.num_steps)]
    )
    np.testing.assert_array_equal(seen[:48], np.arange(52, 100))


def test_the_next_order_is_ready_before_it_is_needed() -> None:
    asked: list[tuple[int, str]] = []
    finished = threading.Event()

    def shuffle(seed: int, number: int, num_images: int) -> np.ndarray:
        asked.append((number, threading.current_thread().name))
        if number == 1:
            finished.set()
        return np.arange(num_images)

    ahead = ShuffleAhead(shuffle)
    main = threading.current_thread().name
    ahead(7, 0, 10)
    assert finished.wait(10)
    assert asked[0] == (0, main)
    assert asked[1][0] == 1
    assert asked[1][1] != main
    ahead(7, 0, 10)
    assert [number for number, _ in asked].count(1) == 1
