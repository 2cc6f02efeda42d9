"""Attention of packed q, k, v, and how its keys are cut for the kernel."""

import pytest
import torch

from t2t.ops.attention import MAX_TOKENS, attention, key_pieces


def test_packed_attention_is_softmax_attention_by_heads():
    torch.manual_seed(0)
    qkv = torch.randn(2, 7, 3 * 4 * 8, dtype=torch.float64)
    q, k, v = qkv.view(2, 7, 3, 4, 8).permute(2, 0, 3, 1, 4)
    weights = torch.softmax(0.3 * q @ k.transpose(-2, -1), dim=-1)
    wanted = (weights @ v).transpose(1, 2).reshape(2, 7, 32)
    torch.testing.assert_close(attention(qkv, 4, 0.3), wanted)


@pytest.mark.parametrize("tokens", range(1, MAX_TOKENS + 1))
def test_pieces_hold_all_keys_with_little_to_spare(tokens):
    pieces = list(key_pieces(tokens).values())
    assert sum(pieces) >= tokens
    # Nothing is wasted beyond what one tile of the next power of two would hold.
    assert sum(pieces) <= max(16, 1 << (tokens - 1).bit_length())
    for piece in pieces:
        assert piece == 0 or (piece >= 16 and piece & (piece - 1) == 0)
