"""Convolution after space-to-depth, or with added channels of zeros."""

import pytest
import torch
import torch.nn.functional as F

from t2t.ops import convolution as convolution_module
from t2t.ops.convolution import (
    SplitGradient,
    convolution_reference,
    space_to_depth,
    splits_gradient,
    with_eight_channels,
)


@pytest.mark.parametrize("size", [(32, 32), (29, 45), (7, 50)])
@pytest.mark.parametrize(
    ("kernel", "stride", "padding"), [(7, 4, 2), (3, 2, 1), (4, 4, 0), (2, 3, 1)]
)
@pytest.mark.parametrize("by", [space_to_depth, with_eight_channels])
def test_equals_the_reference(by, size, kernel, stride, padding):
    image = torch.randn(2, 3, *size, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(5, 3, kernel, kernel, dtype=torch.float64, requires_grad=True)
    results = []
    for function in (by, convolution_reference):
        out = function(image, weight, stride, padding)
        grads = torch.autograd.grad(out.square().sum(), (image, weight))
        results.append((out, *grads))
    for found, wanted in zip(*results, strict=True):
        torch.testing.assert_close(found, wanted)


def test_a_split_gradient_is_the_whole_gradient(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(0)
    squares = torch.randn(7, 8, 6, 5, dtype=torch.float64)
    weights = [torch.randn(4, 8, 3, 3, dtype=torch.float64) for _ in range(2)]
    weights[1] = weights[0].clone()
    monkeypatch.setattr(convolution_module, "MOST_POSITIONS", 60)  # two images
    assert splits_gradient(squares)
    assert not splits_gradient(squares.clone().requires_grad_())
    assert not splits_gradient(squares[:2])
    assert not splits_gradient(squares[:, :4])
    outputs = []
    for weight, run in zip(weights, (SplitGradient.apply, F.conv2d), strict=True):
        weight.requires_grad_()
        out = run(squares, weight)
        out.square().sum().backward()
        outputs.append(out)
    assert torch.equal(*outputs)
    torch.testing.assert_close(weights[0].grad, weights[1].grad, rtol=1e-6, atol=1e-5)
