"""A step with softmax attention by a convolution equals the one that unfolds."""

import pytest
import torch

from t2t.ops.soft_split import Split
from t2t.ops.softmax_step import SoftmaxWeights, softmax_step, softmax_step_reference


@pytest.mark.parametrize("split", [Split(3, 2, 1), Split(7, 4, 2)])
def test_equals_the_reference(split: Split) -> None:
    torch.manual_seed(0)
    channels, dim = 4, 16
    window = channels * split.kernel**2
    shapes = [(window,), (window,), (3 * dim, window), (dim, dim), (dim,), (dim,)]
    shapes += [(dim,), (dim, dim), (dim,), (dim, dim), (dim,)]
    weights = SoftmaxWeights(*(torch.randn(shape) * 0.3 for shape in shapes))
    image = torch.randn(2, channels, 13, 11)
    results = []
    for function in (softmax_step, softmax_step_reference):
        given = [each.clone().requires_grad_() for each in (image, *weights)]
        out = function(given[0], split, SoftmaxWeights(*given[1:]), 1e-5)
        results.append((out, *torch.autograd.grad(out.square().sum(), given)))
    for found, wanted in zip(*results, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3)
