"""Drop path by whole samples: which are kept, and the residual sum."""

import pytest
import torch
import torch.nn.functional as F

from t2t.ops.kept_samples import draw_kept_indices, kept_counts
from t2t.ops.residual_norm import residual_norm


def test_a_draw_gives_each_kept_sample_its_own_index():
    counts = [8, 7, 3]
    index = draw_kept_indices(8, counts, torch.device("cpu"))
    for row, count in zip(index, counts, strict=True):
        kept = row[row >= 0]
        assert sorted(kept.tolist()) == list(range(count))
        assert (row[row < 0] == -1).all()


def test_samples_are_dropped_equally_often():
    torch.manual_seed(0)
    index = draw_kept_indices(8, [6] * 4000, torch.device("cpu"))
    rate = (index < 0).float().mean(0)
    torch.testing.assert_close(rate, torch.full((8,), 0.25), rtol=0, atol=0.03)


def test_counts_round_and_keep_at_least_one():
    assert kept_counts(256, [0.1]) == [230]
    assert kept_counts(4, [0.1]) == [4]
    assert kept_counts(1, [0.9]) == [1]
    assert kept_counts(8, [0.0, 0.5, 0.0]) == [8, 4, 8]


@pytest.mark.parametrize("batch", [16, 31, 64, 128, 512])
def test_all_branches_together_drop_the_sum_of_their_rates(batch):
    """T2T-ViT-14's rates add up to .700 a branch kind, at any number of images."""
    rates = [rate for rate in torch.linspace(0, 0.1, 14).tolist() for _ in range(2)]
    counts = kept_counts(batch, rates)
    assert sum(batch - count for count in counts) == round(batch * sum(rates))
    for count, rate in zip(counts, rates, strict=True):
        assert abs(batch - count - batch * rate) < 1


@pytest.mark.parametrize("drops", [False, True])
def test_sum_and_norm_match_the_formula(drops):
    torch.manual_seed(0)
    residual, branch = (
        torch.randn(5, 3, 16),
        torch.randn(4 if drops else 5, 3, 16),
    )
    bias, gain, shift = torch.randn(3, 16)
    index = torch.tensor([2, -1, 0, 3, 1], dtype=torch.int32) if drops else None
    normed_index = torch.tensor([-1, 1, -1, 0, 2], dtype=torch.int32) if drops else None
    total, normed = residual_norm(
        residual,
        branch,
        bias,
        gain,
        shift,
        index,
        normed_index,
        3 if drops else 5,
        1.25,
        1e-5,
    )
    wanted = residual.clone()
    order = [3, 1, 4] if drops else list(range(5))
    for sample in range(5):
        row = sample if index is None else int(index[sample])
        if row >= 0:
            wanted[sample] += 1.25 * (branch[row] + bias)
    torch.testing.assert_close(total, wanted)
    torch.testing.assert_close(
        normed, F.layer_norm(wanted, (16,), gain, shift, 1e-5)[order]
    )
