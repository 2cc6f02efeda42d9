"""A linear layer with GELU after it."""

import torch

from t2t.ops.gelu import linear_gelu


def test_linear_gelu_is_linear_then_gelu():
    torch.manual_seed(0)
    x, weight, bias = torch.randn(2, 3, 8), torch.randn(16, 8), torch.randn(16)
    wanted = torch.nn.functional.gelu(x @ weight.T + bias)
    torch.testing.assert_close(linear_gelu(x, weight, bias), wanted)
