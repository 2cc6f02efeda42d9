"""A tokens-to-token step by a convolution equals the one that unfolds."""

import pytest
import torch

from t2t.ops.performer_step import (
    StepWeights,
    performer_step,
    performer_step_reference,
)
from t2t.ops.soft_split import Split
from t2t.ops.token_transformer import dropout_masks


def step_weights(channels: int, kernel: int) -> StepWeights:
    window = channels * kernel**2
    shapes = [(window,), (window,), (192, window), (192,), (32, 64), (64, 64), (64,)]
    shapes += [(64,), (64,), (64, 64), (64,), (64, 64), (64,)]
    tensors = [torch.randn(shape, dtype=torch.float64) * 0.2 for shape in shapes]
    return StepWeights(*(tensor.requires_grad_() for tensor in tensors))


@pytest.mark.parametrize("drop_rate", [0.0, 0.1])
@pytest.mark.parametrize("given", [False, True])
def test_equals_the_reference(drop_rate, given):
    torch.manual_seed(0)
    split = Split(3, 2, 1)
    weights = step_weights(4, split.kernel)
    image = torch.randn(2, 4, 9, 11, dtype=torch.float64, requires_grad=True)
    learned = [weight for weight in weights if weight is not weights.features]
    results = []
    for function in (performer_step, performer_step_reference):
        moments = torch.stack([image.sum(1), image.square().sum(1)], 1)
        out, found = function(
            image,
            moments if given else None,
            split,
            weights,
            torch.tensor(5),
            drop_rate,
            1e-5,
        )
        torch.testing.assert_close(found[:, 0], out.sum(1), check_dtype=False)
        loss = out.square().sum() + found.sum()
        results.append((out, *torch.autograd.grad(loss, (image, *learned))))
    for found, wanted in zip(*results, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("drop_rate", [0.1, 0.5, 0.9])
def test_dropout_keeps_the_mean_and_draws_two_masks(drop_rate):
    masks = [
        mask
        for seed in (5, 6)
        for mask in dropout_masks(torch.tensor(seed), 2000, drop_rate)
    ]
    for mask in masks:
        dropped = (mask == 0).float()
        assert dropped.mean().item() == pytest.approx(drop_rate, abs=0.005)
        assert mask.mean().item() == pytest.approx(1, abs=0.03)
    together = torch.corrcoef(torch.stack([mask.flatten() for mask in masks]))
    torch.testing.assert_close(together, torch.eye(4), rtol=0, atol=0.02)


def test_the_highest_rate_of_dropout_leaves_finite_numbers():
    for mask in dropout_masks(torch.tensor(5), 2000, 0.999999):
        assert mask.isfinite().all()
