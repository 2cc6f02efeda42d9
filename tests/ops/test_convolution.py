"""Convolution after space-to-depth, or with added channels of zeros."""

import pytest
import torch

from t2t.ops.convolution import (
    convolution_reference,
    space_to_depth,
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
