"""Draws are functions of (seed, step, index, stream) and look like random numbers."""

import itertools

import numpy as np
import pytest
import torch
from scipy import stats

from t2t.data.rng import CounterRng
from t2t.errors import UserError


def splitmix64(word: int) -> int:
    """The finaliser in Python's own integers, to compare against."""
    mask = (1 << 64) - 1
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & mask
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & mask
    return word ^ (word >> 31)


def many(num: int = 1000, seed: int = 3, step: int = 5) -> CounterRng:
    return CounterRng.of(seed, step, torch.arange(num))


def test_bits_equal_an_integer_evaluation():
    mask, increment = (1 << 64) - 1, 0x9E3779B97F4A7C15
    name = 0xCBF29CE484222325
    for character in "flip":
        name = ((name ^ ord(character)) * 0x100000001B3) & mask
    for seed, step, index in [(0, 0, 0), (7, 123, 456), (2**63 + 5, 10**9, 2**40)]:
        key = increment
        for word in (seed, step, index, name):
            key = splitmix64(((key ^ word) * increment) & mask)
        expected = [splitmix64(((key ^ n) * increment) & mask) for n in (0, 1, 2)]
        drawn = CounterRng.of(seed, step, torch.tensor([index])).bits("flip", 3)[0]
        assert [value % (1 << 64) for value in drawn.tolist()] == expected


def test_a_sample_sees_the_same_draws_in_any_batch():
    indices = torch.tensor([5, 900, 17, 3, 2**50])
    whole = CounterRng.of(1, 2, indices)
    for position in range(len(indices)):
        alone = CounterRng.of(1, torch.tensor(2), indices[position : position + 1])
        for draw in ("uniform", "normal", "bits"):
            expected = getattr(whole, draw)("stream", 7)[position]
            assert torch.equal(getattr(alone, draw)("stream", 7)[0], expected)
        assert torch.equal(alone.beta("mix", 0.8)[0], whole.beta("mix", 0.8)[position])
    assert torch.equal(
        whole.shared().uniform("lam"),
        CounterRng.of(1, 2, indices[1:]).shared().uniform("lam"),
    )
    # A longer draw starts with the shorter one.
    assert torch.equal(whole.uniform("a", 9)[:, :4], whole.uniform("a", 4))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (many().uniform("a", 50), many().uniform("b", 50)),
        (many().uniform("a", 50), many(step=6).uniform("a", 50)),
        (many().uniform("a", 50), many(seed=4).uniform("a", 50)),
        (many().uniform("a", 50)[:-1], many().uniform("a", 50)[1:]),
        (many().uniform("a", 51)[:, :-1], many().uniform("a", 51)[:, 1:]),
        (many().uniform("a", 50), many().shared().uniform("a", 50).expand(1000, 50)),
    ],
    ids=["streams", "steps", "seeds", "indices", "counters", "shared"],
)
def test_neighbouring_draws_are_independent(first, second):
    pairs = np.histogram2d(first.flatten(), second.flatten(), bins=16)[0]
    if len(second.unique()) > 1000:  # shared draws repeat: only correlation applies
        assert stats.chisquare(pairs.flatten()).pvalue > 1e-4
    correlation = np.corrcoef(first.flatten(), second.flatten())[0, 1]
    assert abs(correlation) < 4 / len(first.flatten()) ** 0.5


def test_every_bit_is_fair():
    bits = many(4000).bits("a", 16).flatten()
    for place in range(64):
        share = ((bits >> place) & 1).double().mean().item()
        assert abs(share - 0.5) < 4.5 * 0.5 / len(bits) ** 0.5, place


def test_distributions():
    rng = many(20000)
    uniform = rng.uniform("u", 4).flatten()
    assert uniform.min() >= 0
    assert uniform.max() < 1
    assert stats.kstest(uniform, "uniform").pvalue > 1e-3
    normal = rng.normal("n", 4).flatten()
    assert stats.kstest(normal, "norm").pvalue > 1e-3
    assert torch.isfinite(normal).all()
    wide = rng.uniform("w", 1, low=-2.0, high=3.0).flatten()
    assert stats.kstest(wide, stats.uniform(-2, 5).cdf).pvalue > 1e-3
    assert abs(rng.bernoulli("b", 0.25).float().mean().item() - 0.25) < 0.013
    assert not rng.bernoulli("b", 0.0).any()
    assert rng.bernoulli("b", 1.0).all()


@pytest.mark.parametrize("alpha", [0.1, 0.2, 0.8, 1.0, 8.0])
def test_beta(alpha):
    drawn = many(20000).beta("lam", alpha).flatten()
    assert ((drawn >= 0) & (drawn <= 1)).all()
    # Float32 cannot tell the last 1e-7 below 1 from 1: compare inside.
    expected = stats.beta(alpha, alpha)
    for quantile in np.linspace(0.05, 0.9, 18):
        share = (drawn <= float(expected.ppf(quantile))).float().mean().item()
        assert abs(share - quantile) < 4.5 * 0.5 / len(drawn) ** 0.5


def test_integers_cover_their_range_evenly():
    counts = many(6000).integers("i", 7, 2).flatten().bincount(minlength=7)
    assert len(counts) == 7
    assert stats.chisquare(counts).pvalue > 1e-4
    assert not many(3).integers("i", 1, 400).any()


def test_permutations_are_all_equally_likely():
    orders = many(6000).permutation("p", 3)
    assert (orders.sort(1).values == torch.arange(3)).all()
    counts = (orders @ torch.tensor([9, 3, 1])).unique(return_counts=True)[1]
    assert len(counts) == 6
    assert stats.chisquare(counts).pvalue > 1e-4


def test_indices_must_be_a_vector_of_int64():
    with pytest.raises(UserError, match="int64 sample indices, not"):
        CounterRng.of(0, 0, torch.arange(3, dtype=torch.int32))


def test_a_view_has_draws_of_its_own_and_view_0_those_of_the_batch() -> None:
    rng = CounterRng.of(3, 7, torch.arange(5))
    assert rng.for_view(0) is rng
    views = [rng.for_view(number) for number in range(4)]
    for one, other in itertools.combinations(views, 2):
        assert (one.bits("a") != other.bits("a")).all()
        assert (one.shared().bits("a") != other.shared().bits("a")).all()
    alone = CounterRng.of(3, 7, torch.tensor([3])).for_view(2)
    assert torch.equal(alone.bits("a", 4), views[2].bits("a", 4)[3:4])
