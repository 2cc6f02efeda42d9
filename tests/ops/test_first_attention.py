"""Attention of the first tokens only."""

import pytest
import torch
import torch.nn.functional as F

from t2t.ops.attention import attention_reference
from t2t.ops.first_attention import first_attention


@pytest.mark.parametrize("num_read", [1, 2])
@pytest.mark.parametrize("with_bias", [False, True])
def test_it_is_the_first_rows_of_all_attention(num_read: int, with_bias: bool) -> None:
    torch.manual_seed(0)
    tokens, weight = torch.randn(3, 7, 16), torch.randn(48, 16) * 0.3
    bias = torch.randn(48) if with_bias else None
    found = first_attention(tokens, weight, bias, 2, 0.4, num_read)
    wanted = attention_reference(F.linear(tokens, weight, bias), 2, 0.4)
    torch.testing.assert_close(found, wanted[:, :num_read])


def test_in_half_precision_it_is_summed_in_float32() -> None:
    torch.manual_seed(0)
    tokens = torch.randn(8, 200, 64).bfloat16()
    # Queries, keys and values are the tokens: nothing but attention is rounded.
    weight = torch.eye(64).repeat(3, 1)
    found = first_attention(tokens, weight, None, 1, 0.05, 1)
    wanted = first_attention(tokens.double(), weight.double(), None, 1, 0.05, 1)
    # As much as the result's own rounding.
    assert (found - wanted).norm() < 2**-9 * wanted.norm()
