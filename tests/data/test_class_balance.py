"""Balanced passes: quotas of classes, every image in turn, the same whoever asks."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from t2t.data.batches import LoaderOptions, open_batches
from t2t.data.class_balance import (
    BalancedShuffle,
    balance_factors,
    balanced_quotas,
    class_counts,
    is_uneven,
)
from t2t.data.sampler import TrainingSampler, steps_per_epoch
from t2t.data.sources import ArraySource
from t2t.data.sources.base import Indices

ORDER = [7, 4, 3, 0, 6, 2, 7, 6]


class InBlocks(ArraySource):
    """Images that are read in blocks of ten, two of which fit into memory."""

    @property
    def blocks(self) -> Indices:
        return np.arange(len(self)) // 10

    @property
    def num_blocks_at_once(self) -> int:
        return 2


def source_of(*counts: int, kind: type[ArraySource] = ArraySource) -> ArraySource:
    labels = np.repeat(np.arange(len(counts)), counts)
    # Every class in every block.
    labels = labels[np.random.default_rng(0).permutation(len(labels))]
    images = torch.arange(len(labels)).to(torch.uint8)
    images = images[:, None, None, None].expand(-1, 3, 4, 4)
    return kind(images, labels, [f"class {each}" for each in range(len(counts))])


def sampler(source: ArraySource, power: float = 1.0, **others: int) -> TrainingSampler:
    shuffle = BalancedShuffle(source, 8, power)
    return TrainingSampler(
        num_images=len(source), batch_size=8, shuffle=shuffle, **others
    )


def test_only_classes_far_apart_are_uneven() -> None:
    assert is_uneven(source_of(40, 20))
    assert not is_uneven(source_of(39, 20))
    assert not is_uneven(source_of(30, 30, 30))
    # A class without images is not small but absent.
    missing = source_of(30, 30)
    missing.classes = ("a", "b", "c")
    assert class_counts(missing).tolist() == [30, 30, 0]
    assert not is_uneven(missing)
    assert not is_uneven(ArraySource(torch.zeros(4, 3, 2, 2, dtype=torch.uint8)))


@given(
    counts=st.lists(st.integers(0, 500), min_size=1, max_size=30).filter(any),
    power=st.sampled_from([0.1, 0.5, 1.0]),
)
@settings(max_examples=60, deadline=None)
def test_quotas_add_up_and_are_in_proportion(counts: list[int], power: float) -> None:
    numbers = np.array(counts)
    factors = balance_factors(numbers, power)
    assert (factors * numbers).sum() == pytest.approx(numbers.sum())
    assert ((factors > 0) == (numbers > 0)).all()
    quotas = balanced_quotas(numbers, power)
    assert quotas.sum() == numbers.sum()
    assert ((quotas > 0) == (numbers > 0)).all()
    assert np.abs(quotas - factors * numbers).max() < 1


def test_the_powers_are_a_full_and_a_square_root_balance() -> None:
    counts = np.array([400, 100])
    assert balanced_quotas(counts, 1.0).tolist() == [250, 250]
    assert balanced_quotas(counts, 0.5).tolist() == [333, 167]  # 20 to 10
    factors = balance_factors(counts, 0.5)
    assert factors[1] / factors[0] == pytest.approx(2)


@pytest.mark.parametrize("kind", [ArraySource, InBlocks])
def test_an_epoch_has_as_many_samples_of_every_class(kind: type[ArraySource]) -> None:
    source = source_of(60, 15, 5, kind=kind)
    order = sampler(source, seed=3)
    for epoch in range(4):
        steps = range(epoch * 10, epoch * 10 + 10)
        indices = np.concatenate([order.batch_indices(s).indices for s in steps])
        assert len(indices) == len(source) == 8 * steps_per_epoch(80, 8)
        assert sorted(np.bincount(source.labels[indices])) == [26, 27, 27]
    other = sampler(source, seed=4).batch_indices(0).indices
    assert (other != order.batch_indices(0).indices).any()


@pytest.mark.parametrize("power", [0.5, 1.0])
def test_images_of_a_class_take_turns_over_the_epochs(power: float) -> None:
    source = source_of(60, 15, 5)
    shuffle = BalancedShuffle(source, 8, power)
    counts = np.zeros(80, np.int64)
    for number in range(7):
        counts += np.bincount(shuffle(0, number, 80), minlength=80)
        for label in range(3):
            shown = counts[source.labels == label]
            assert shown.max() - shown.min() <= 1
    # All of the largest class are seen, though only 27 of 60 in each pass.
    assert counts.min() > 0


def test_a_pass_in_blocks_reads_few_at_a_time() -> None:
    source = source_of(100, 20, 5, kind=InBlocks)
    order = BalancedShuffle(source, 8, 1.0)(0, 0, 125)
    blocks = np.arange(125)[order] // 10
    # Windows of two blocks: no block is left and entered again.
    entered: list[set[int]] = []
    for block in blocks.tolist():
        if entered and (block in entered[-1] or len(entered[-1]) < 2):
            entered[-1].add(block)
        else:
            entered.append({block})
    seen = [block for window in entered for block in window]
    assert len(seen) == len({*seen})
    assert len(seen) > 6


@given(
    seed=st.integers(0, 2**32 - 1),
    world_size=st.sampled_from([2, 4]),
    repeats=st.integers(1, 3),
)
@settings(max_examples=20, deadline=None)
def test_ranks_together_see_what_one_process_sees(
    seed: int, world_size: int, repeats: int
) -> None:
    source = source_of(30, 6, 4)
    for step in (11, 0, 5):  # in any order, as after a resume
        alone = sampler(source, seed=seed, repeats=repeats).batch_indices(step)
        shares = [
            sampler(
                source, seed=seed, repeats=repeats, rank=rank, world_size=world_size
            ).batch_indices(step)
            for rank in range(world_size)
        ]
        for field in range(3):
            together = np.concatenate([share[field] for share in shares])
            np.testing.assert_array_equal(alone[field], together)


@pytest.mark.parametrize("repeats", [1, 3])
def test_an_image_twice_in_a_batch_is_augmented_in_two_ways(repeats: int) -> None:
    source = source_of(30, 2)  # each of the two is shown eight times in a pass
    order = sampler(source, repeats=repeats)
    found_twice = False
    for step in range(20):
        indices, keys, _ = order.batch_indices(step)
        assert len({*keys.tolist()}) == 8
        np.testing.assert_array_equal(keys % 32, indices)
        found_twice |= len({*indices.tolist()}) < -(-8 // repeats)
    assert found_twice


@pytest.mark.parametrize("resident", [True, False])
def test_batches_have_the_images_that_the_sampler_chose(resident: bool) -> None:
    source = source_of(30, 4)
    batches = open_batches(
        source,
        batch_size=8,
        crops=(),
        device="cpu",
        balance_power=1.0,
        loader_options=LoaderOptions(resident=resident, num_workers=1),
    )
    order = sampler(source)
    steps = batches.steps(2, 6)
    for step, batch in zip(range(2, 6), steps, strict=True):
        expected = order.batch_indices(step).indices
        assert batch.indices.tolist() == expected.tolist()
        assert batch.images[:, 0, 0, 0].tolist() == expected.tolist()
        assert batch.labels.tolist() == source.labels[expected].tolist()
    steps.close()


def test_the_order_does_not_change_between_versions() -> None:
    images = torch.zeros(8, 3, 2, 2, dtype=torch.uint8)
    source = ArraySource(images, [0, 0, 0, 0, 0, 0, 1, 1], ("a", "b"))
    assert BalancedShuffle(source, 8, 1.0)(7, 2, 8).tolist() == ORDER
