"""Order: every image once per pass, the same whoever asks."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from t2t.data.sampler import (
    BatchIndices,
    EvaluationSampler,
    TrainingSampler,
    shuffled,
    steps_per_epoch,
)
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
    with pytest.raises(UserError, match="64 is more than the 50 images"):
        steps_per_epoch(50, 64)
    with pytest.raises(UserError, match="cannot be split over 3"):
        slots(0, 8, 20, world_size=3)
