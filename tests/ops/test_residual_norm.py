"""Stochastic depth by whole samples: who is kept, and what becomes of the sum."""

import pytest
import torch
import torch.nn.functional as F

from t2t.ops.residual_norm import draw_slots, kept_counts, residual_norm


def test_every_draw_keeps_as_many_as_asked_each_in_a_place_of_its_own():
    counts = [8, 7, 3]
    slots = draw_slots(8, counts, torch.device("cpu"))
    for row, count in zip(slots, counts, strict=True):
        kept = row[row >= 0]
        assert sorted(kept.tolist()) == list(range(count))
        assert (row[row < 0] == -1).all()


def test_every_sample_is_dropped_as_often_as_any_other():
    torch.manual_seed(0)
    slots = draw_slots(8, [6] * 4000, torch.device("cpu"))
    rate = (slots < 0).float().mean(0)
    torch.testing.assert_close(rate, torch.full((8,), 0.25), rtol=0, atol=0.03)


def test_counts_round_and_never_drop_all():
    assert kept_counts(256, [0.1]) == [230]
    assert kept_counts(4, [0.1]) == [4]
    assert kept_counts(1, [0.9]) == [1]
    assert kept_counts(8, [0.0, 0.5, 0.0]) == [8, 4, 8]


@pytest.mark.parametrize("batch", [16, 31, 64, 128, 512])
def test_all_branches_together_drop_what_their_rates_add_up_to(batch):
    """T2T-ViT-14's rates add up to .700 a branch kind, at any number of images."""
    rates = [rate for rate in torch.linspace(0, 0.1, 14).tolist() for _ in range(2)]
    counts = kept_counts(batch, rates)
    assert sum(batch - count for count in counts) == round(batch * sum(rates))
    for count, rate in zip(counts, rates, strict=True):
        assert abs(batch - count - batch * rate) < 1


@pytest.mark.parametrize("token_dropping", [False, True])
def test_sum_and_norm_are_those_of_the_formula(token_dropping):
    torch.manual_seed(0)
    residual, branch = (
        torch.randn(5, 3, 16),
        torch.randn(4 if token_dropping else 5, 3, 16),
    )
    bias, gain, shift = torch.randn(3, 16)
    slots = (
        torch.tensor([2, -1, 0, 3, 1], dtype=torch.int32) if token_dropping else None
    )
    normed_slots = (
        torch.tensor([-1, 1, -1, 0, 2], dtype=torch.int32) if token_dropping else None
    )
    total, normed = residual_norm(
        residual,
        branch,
        bias,
        gain,
        shift,
        slots,
        normed_slots,
        3 if token_dropping else 5,
        1.25,
        1e-5,
    )
    wanted = residual.clone()
    order = [3, 1, 4] if token_dropping else list(range(5))
    for sample in range(5):
        slot = sample if slots is None else int(slots[sample])
        if slot >= 0:
            wanted[sample] += 1.25 * (branch[slot] + bias)
    torch.testing.assert_close(total, wanted)
    torch.testing.assert_close(
        normed, F.layer_norm(wanted, (16,), gain, shift, 1e-5)[order]
    )
