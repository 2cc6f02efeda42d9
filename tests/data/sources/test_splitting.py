"""Hold-out and orders by a seed."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from image_folders import array_source

from t2t.data.sources import (
    Source,
    holdout,
    mixed_order,
)
from t2t.data.sources.splitting import _scrambled, held_out_indices, permutation
from t2t.errors import UserError


def test_hold_out_takes_exactly_so_many():
    source = array_source([0] * 50 + [1] * 30 + [2] * 20)
    rest, held = holdout(source, 11, seed=1)
    assert len(held) == 11
    assert len(rest) == 89
    assert np.bincount(held.labels).tolist() in ([6, 3, 2], [5, 4, 2], [5, 3, 3])
    assert sorted([*rest.indices, *held.indices]) == list(range(100))
    with pytest.raises(UserError, match="1 to 97"):
        holdout(source, 98)


def test_every_class_is_left_something_to_train_on():
    source = array_source([0] * 100 + [1] + [2] * 2)
    for num in (1, 60, 100):
        rest, held = holdout(source, num)
        assert len(held) == num
        assert set(rest.labels.tolist()) == {0, 1, 2}


@settings(deadline=None, max_examples=80)
@given(
    counts=st.lists(st.integers(2, 40), min_size=1, max_size=8),
    share=st.floats(0, 1),
    seed=st.integers(0, 2**63),
)
def test_held_out_indices_share_out_evenly(counts, share, seed):
    labels = np.repeat(np.arange(len(counts)), counts)
    num = round(share * len(labels))
    held = held_out_indices(labels, num, seed)
    assert len(held) == len(set(held.tolist())) == num
    taken = np.bincount(labels[held], minlength=len(counts))
    assert (np.abs(taken - np.array(counts) * num / len(labels)) < 1 + 1e-9).all()


def test_a_permutation_is_the_same_for_ever():
    # The first numbers of splitmix64 from seed 0, as published.
    assert _scrambled(np.arange(2), 0).tolist() == [
        0xE220A8397B1DCDAF,
        0x6E789E6AA1B965F4,
    ]
    assert permutation(8, 0).tolist() == [2, 4, 6, 5, 1, 7, 0, 3]
    assert sorted(permutation(1000, 7)) == list(range(1000))
    assert not np.array_equal(permutation(1000, 7), permutation(1000, 8))


def test_mixed_order_reads_no_block_twice():
    class Blocked(Source):
        labels = np.zeros(60, np.int64)
        classes = ("a",)
        blocks = np.repeat(np.arange(12), 5)
        num_blocks_at_once = 3

        def read(self, index):
            raise NotImplementedError

        def name(self, index):
            return str(index)

    order = mixed_order(Blocked(), seed=2)
    assert sorted(order) == list(range(60))
    blocks = Blocked.blocks[order].reshape(4, 15)
    windows = [set(row.tolist()) for row in blocks]
    assert [len(window) for window in windows] == [3, 3, 3, 3]
    assert not set.intersection(*windows)
    assert any(len(set(row[:5].tolist())) > 1 for row in blocks)
    others = Blocked.blocks[mixed_order(Blocked(), seed=4)].reshape(4, 15)
    assert windows != [set(row.tolist()) for row in others]
    whole = mixed_order(array_source(range(9)), seed=2)
    assert sorted(whole) == list(range(9))
